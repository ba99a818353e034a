"""`holdfast replay` by failure group: the whole group unless a limit says otherwise, and nothing left unsaid."""

import json
import signal

from tests.cli.conftest import Shop

SIZE = 250

WAITING = """
import time
from holdfast.interfaces.cli import main
from holdfast.interfaces.cli.output import ProgressLine

show = ProgressLine.__call__

def show_and_wait(self, *numbers):
    show(self, *numbers)
    if self._printed:
        time.sleep(60)

ProgressLine.__call__ = show_and_wait
main(prog_name="holdfast")
"""
"""The commands, which wait after the first line of progress: otherwise one may end before it is interrupted."""


def plan_of(shop: Shop) -> dict[str, object]:
    newest: dict[str, object] = json.loads(shop.run("plans", "list", "--format", "json").stdout)[0]
    return newest


def test_a_group_is_replayed_whole_and_the_summary_comes_last(either: Shop) -> None:
    either.heap(SIZE)
    done = either.run("replay", "--group", "f", "--yes", "--reason", "fixed")
    assert done.exit_code == 0, done.stderr
    assert len(either.replayed()) == SIZE
    *_, summary, follow = done.stderr.splitlines()
    assert summary == "replayed 250 deliveries"
    assert follow == f"results: holdfast plans show {plan_of(either)['id']}"


def test_a_sample_names_how_many_it_left(shop: Shop) -> None:
    shop.heap(SIZE)
    preview = shop.run("replay", "--group", "f", "--limit", "10", "--dry-run")
    assert "240 more match but exceed --limit 10" in preview.stderr
    sample = shop.run("replay", "--group", "f", "--limit", "10", "--yes")
    assert (
        "replayed 10 deliveries\n240 more match and are unchanged; run the same command for the next 10, or without "
        "--limit for all\n" in sample.stderr
    )
    rest = shop.run("replay", "--group", "f", "--yes")
    assert ("replayed 240 deliveries" in rest.stderr, "more match" in rest.stderr) == (True, False)


def test_discarding_takes_the_whole_group_too(shop: Shop) -> None:
    shop.heap(SIZE)
    assert "discarded 250 deliveries" in shop.run("dlq", "discard", "--group", "f", "--yes").stderr


def test_an_unknown_group_is_not_found(either: Shop) -> None:
    for args in (("replay",), ("replay", "--dry-run"), ("dlq", "discard")):
        result = either.run(*args, "--group", "nosuchgroup", "--yes")
        assert (result.exit_code, "no failure group 'nosuchgroup'" in result.stderr) == (3, True), result.stderr
    either.heap(1)
    other = either.run("replay", "--group", "f", "--consumer", "nightly", "--yes")
    assert (other.exit_code, "no matching deliveries" in other.stderr) == (0, True), "the group exists"


def test_the_list_of_plans_has_no_zero_before_a_delivery_ended_and_counts_without_a_worker(either: Shop) -> None:
    either.run("replay", "--status", "failed", "--yes")

    def results() -> list[str]:
        header, _, row = either.run("plans", "list").stdout.splitlines()[:3]
        begin = header.index("TOTAL") + len("TOTAL")
        return row[begin : header.index("DEAD AGAIN") + len("DEAD AGAIN")].split()

    assert results() == []
    either.end(dead=2)
    assert results() == ["3", "2"]


def test_a_plan_shows_how_many_were_delivered_and_how_many_died_again(either: Shop) -> None:
    either.run("replay", "--status", "failed", "--yes")
    id = plan_of(either)["id"]
    assert "0 delivered, 0 dead again, 5 not ended yet" in either.run("plans", "show", id).stdout
    either.end(dead=2)
    assert "3 delivered, 2 dead again" in either.run("plans", "show", id).stdout, "no worker runs that counts them"
    shown = either.run("plans", "show", id, "--wait")
    assert shown.exit_code == 1, "two are dead again"
    assert "3 delivered, 2 dead again" in shown.stdout
    assert "next: holdfast dlq show" in shown.stderr


def test_a_bulk_command_that_is_not_confirmed_leaves_no_plan(either: Shop) -> None:
    def plans() -> list[object]:
        found: list[object] = json.loads(either.run("plans", "list", "--format", "json").stdout)
        return found

    code, printed = either.on_terminal("replay", "--status", "failed", input="n\n")
    assert (code, "nothing was changed" in printed) == (4, True)
    assert either.run("replay", "--status", "failed").exit_code == 4, "stdin is no terminal"
    assert either.run("replay", "--status", "failed", "--consumer", "nightly", "--yes").exit_code == 0
    assert either.run("replay", "--status", "failed", "--consumer", "unknown", "--yes").exit_code == 3
    assert either.run("replay", "--event-id", either.dead[0], "--yes").exit_code in (3, 4)
    assert plans() == []
    file = either.folder / "kept.json"
    either.run("replay", "--status", "failed", "--plan", file)
    assert len(plans()) == 1, "a plan that was exported stays"


def test_a_dry_run_that_selects_nothing_leaves_no_plan_and_another_names_the_commands_of_its_plan(either: Shop) -> None:
    nothing = either.run("replay", "--consumer", "nightly", "--dry-run")
    assert (nothing.exit_code, nothing.stderr) == (0, "nothing to replay: no matching deliveries\n")
    done = either.run("replay", "--status", "delivered", "--dry-run")
    assert "would replay 0 deliveries" in done.stderr
    assert "already delivered; --rerun runs them again" in done.stderr
    assert json.loads(either.run("plans", "list", "--format", "json").stdout) == []
    kept = either.run("replay", "--status", "failed", "--dry-run").stderr
    id = plan_of(either)["id"]
    assert f"next: holdfast plans start {id}, or holdfast plans abandon {id}" in kept


def test_a_replay_says_that_a_consumer_or_a_queue_is_paused(either: Shop) -> None:
    either.run("consumers", "pause", "billing")
    either.run("queues", "pause", "payments")
    for command in (("--dry-run",), ("--yes",)):
        printed = either.run("replay", "--consumer", "billing", *command).stderr
        assert "consumer billing is paused: they wait until `holdfast consumers resume billing`" in printed
        assert "queue payments is paused: they wait until `holdfast queues resume payments`" in printed


def test_an_interrupted_bulk_command_says_whether_its_plan_is_paused(either: Shop) -> None:
    either.heap(2_000)
    (either.folder / "waiting.py").write_text(WAITING)
    process = either.start("replay", "--group", "f", "--yes", program=("waiting.py",))
    try:
        assert process.stderr is not None
        process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        printed = process.stderr.read()
    finally:
        process.kill()
        process.communicate()
    plan = plan_of(either)
    assert f"plan {plan['id']} {'paused' if plan['state'] == 'paused' else 'is done'}; " in printed
