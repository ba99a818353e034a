"""The main flows, as an operator types them, in separate processes."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from holdfast.core.delivery import Status
from holdfast.stores.admin.actions import audit
from holdfast.stores.queries.query import Filter, deliveries, messages
from tests.cli.conftest import Shop, command

APP = """
import sys

from holdfast import Holdfast, RetryPolicy

hf = Holdfast()

def say(line):
    # Handlers run in threads; one write is one line.
    sys.stdout.write(line + "\\n")
    sys.stdout.flush()

@hf.consumer("order.placed", name="billing", queue="payments", retry=RetryPolicy.none())
def billing(order):
    say(f"charged {order['order_id']}")

@hf.consumer("order.*", name="receipts", queue="payments")
def receipts(order):
    pass

@hf.job(queue="mail")
def mail(to: str):
    say(f"mailed {to}")

@hf.cron("0 7 * * *", queue="mail")
def nightly():
    say("nightly ran")
"""
FAILING = """
from holdfast import Holdfast, RetryPolicy

hf = Holdfast("sqlite:///failing.db")

@hf.job(retry=RetryPolicy.none())
def fail():
    raise ValueError("no such card")
"""


def app(shop: Shop) -> Path:
    path = shop.folder / "shopapp.py"
    path.write_text(APP)
    return path


def test_from_a_dead_letter_to_a_replay_that_works(either: Shop) -> None:
    """Find what broke, read its story, preview, replay all that failed alike, and let a worker run them."""
    listed = [json.loads(line) for line in either.spawn("dlq", "list", "--format", "jsonl").stdout.splitlines()]
    assert len(listed) == 5
    story = either.spawn("dlq", "show", listed[0]["id"]).stdout
    assert "RuntimeError: card declined for order 7" in story
    replay = next(line.split("replay all 5", 1)[1].split() for line in story.splitlines() if "replay all 5" in line)
    assert replay[:2] == ["holdfast", "replay"]
    preview = either.spawn(*replay[1:], "--dry-run")
    assert "would replay 5 deliveries" in preview.stderr
    assert "generation 0 -> 41" in preview.stderr
    assert either.spawn(*replay[1:]).returncode == 4, "no one can be asked here"
    done = either.spawn(*replay[1:], "--yes", "--reason", "fixed in 42", "--generation", "0", "--actor", "ada")
    assert (done.returncode, "replayed 5 deliveries" in done.stderr) == (0, True), done.stderr
    assert sorted(done.stdout.split()) == sorted(one["id"] for one in listed)
    worked = either.spawn("worker", "--app", f"{app(either)}:hf", "--until-idle", "--lease", "2s", "--generation", "42")
    assert worked.returncode == 0, worked.stderr
    assert worked.stdout.count("charged") == 5
    assert either.dead == []
    audited = json.loads(either.spawn("audit", "list", "--format", "json").stdout)
    assert (audited[0]["actor"], audited[0]["kind"], audited[0]["reason"]) == ("ada", "plan", "fixed in 42")


def test_two_operators_at_once_rerun_each_delivery_once(either: Shop) -> None:
    dead = either.dead
    args = [arg for id in dead for arg in ("--id", id)]
    both = [either.start("replay", *args, "--actor", name, "--format", "json") for name in ("ada", "bob")]
    ended = [process.communicate(timeout=60) for process in both]
    done = []
    for process, (out, err) in zip(both, ended, strict=True):
        if process.returncode == 4 and not out:  # it came second, and found nothing left to do
            assert "waits to be run" in err
            continue
        report = json.loads(out)
        done += report["done"]
        assert process.returncode == (0 if not report["skipped"] else 1 if report["done"] else 4)
        assert len(report["done"]) + len(report["skipped"]) == len(dead)
    assert sorted(done) == sorted(map(str, dead))
    entries = [one for one in either.ask(audit(limit=100)) if one.kind == "delivery" and one.action == "replay"]
    assert sorted(one.target for one in entries) == sorted(map(str, dead))
    again = either.spawn("replay", *args)
    assert (again.returncode, "waits to be run" in again.stderr) == (4, True)


def test_a_plan_is_kept_looked_at_and_executed_once(shop: Shop) -> None:
    dead = shop.dead
    kept = shop.spawn("replay", "--status", "failed", "--limit", "3", "--dry-run", "--plan", "friday.json")
    assert (kept.returncode, "more match" in kept.stderr) == (0, True)
    assert shop.dead == dead
    plan = json.loads((shop.folder / "friday.json").read_text())
    assert [item["id"] for item in plan["items"]] == [str(id) for id in dead[::-1][:3]]
    refused = shop.spawn("replay", "--status", "failed", "--dry-run", "--plan", "friday.json")
    assert (refused.returncode, "an existing file" in refused.stderr) == (4, True)
    wrong = shop.spawn("dlq", "discard", "--plan", "friday.json", "--yes")
    assert (wrong.returncode, "a replay plan" in wrong.stderr) == (4, True)
    first = shop.spawn("replay", "--plan", "friday.json", "--yes", "--format", "json")
    assert (first.returncode, len(json.loads(first.stdout)["done"])) == (0, 3)
    second = json.loads(shop.spawn("replay", "--plan", "friday.json", "--yes", "--format", "json").stdout)
    assert (second["done"], second["earlier"], second["skipped"]) == ([], 3, [])
    assert len(shop.dead) == 2


@pytest.mark.long
def test_a_bulk_replay_that_is_killed_continues_where_it_stopped(either: Shop) -> None:
    total = 3000
    either.heap(total)
    kept = either.spawn("replay", "--consumer", "heap", "--limit", total, "--dry-run", "--plan", "heap.json")
    assert kept.returncode == 0, kept.stderr
    process = either.start("replay", "--plan", "heap.json", "--yes", "--actor", "ada")
    while (done := len(either.replayed())) == 0 and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    done = len(either.replayed())
    assert 0 < done < total, "killed in the middle"
    assert done % 100 == 0, "whole batches"
    again = either.spawn("replay", "--plan", "heap.json", "--yes", "--actor", "bob", "--format", "json")
    assert again.returncode == 0, again.stderr
    report = json.loads(again.stdout)
    assert (len(report["done"]), report["earlier"], report["skipped"]) == (total - done, done, [])
    replayed = either.replayed()
    assert (len(replayed), len(set(replayed))) == (total, total), "each once"


def test_some_of_many_is_a_partial_failure(shop: Shop) -> None:
    result = shop.run("replay", "--id", shop.dead[0], "--id", shop.done, "--format", "json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert [one["why"] for one in report["skipped"]] == ["delivered"]
    alone = shop.run("replay", "--id", shop.done)
    assert (alone.exit_code, "add --rerun" in alone.stderr) == (4, True)
    assert shop.run("replay", "--id", shop.done, "--rerun").exit_code == 0


def test_dead_letters_are_listed_by_what_was_decided(shop: Shop) -> None:
    def listed(state: str) -> set[str]:
        lines = shop.run("dlq", "list", "--state", state, "--format", "jsonl").stdout.splitlines()
        return {json.loads(line)["id"] for line in lines}

    (first, second, *rest), before = shop.dead, listed("discarded")
    assert shop.run("dlq", "discard", first, "--reason", "test", "--yes").exit_code == 0
    assert shop.run("replay", "--id", second, "--yes").exit_code == 0
    assert (listed("discarded") - before, listed("replayed")) == ({str(first)}, {str(second)})
    assert listed("waiting") == {str(id) for id in rest}


def test_a_message_is_replayed_for_the_consumers_named(shop: Shop) -> None:
    (listed,) = shop.ask(deliveries(Filter(ids=(shop.dead[0],)), 1))
    event = listed.delivery.message_id
    done = shop.run("replay", "--event-id", event, "--consumers", "billing")
    assert (done.exit_code, done.stdout.strip()) == (0, str(listed.delivery.id))
    unknown = shop.run("replay", "--event-id", event, "--consumers", "unknown")
    assert (unknown.exit_code, "without a delivery that matches" in unknown.stderr) == (4, True)


def test_dead_letters_are_discarded_and_cancelled_jobs_stay_so(shop: Shop) -> None:
    first, *rest = shop.dead
    assert shop.run("dlq", "discard", first, "--reason", "test", "--yes").exit_code == 0
    assert shop.dead == rest
    assert shop.run("dlq", "discard", first, "--yes").exit_code == 4
    assert shop.run("jobs", "cancel", shop.waiting, "--yes").exit_code == 0
    (listed,) = shop.ask(deliveries(Filter(ids=(shop.waiting,)), 1))
    assert (listed.delivery.status, listed.delivery.discarded_at is not None) == (Status.FAILED, True)
    assert shop.run("deliveries", "cancel", "--consumer", "mail", "--yes").exit_code == 0, "nothing left to cancel"


def test_an_event_and_a_job_are_stored_by_hand_and_run(either: Shop) -> None:
    piped = either.spawn("publish", "order.placed", "-", "--key", "k", input='{"order_id": 99}')
    assert (piped.returncode, piped.stderr) == (0, "")
    again = either.spawn("publish", "order.placed", '{"order_id": 99}', "--key", "k")
    assert (again.stdout, "nothing was published" in again.stderr) == (piped.stdout, True)
    id = either.spawn("enqueue", "mail", '{"to": "bob"}').stdout.strip()
    ran = either.spawn("schedules", "run", "nightly").stdout.strip()
    shown = json.loads(either.spawn("jobs", "show", id, "--format", "json").stdout)
    assert (shown["consumer"], shown["message"]["payload"]) == ("mail", {"to": "bob"})
    worked = either.spawn(
        "worker", "--until-idle", "--lease", "2s", "--generation", "41", "--log-format", "json",
        HOLDFAST_APP=f"{app(either)}:hf",
    )  # fmt: skip
    assert worked.returncode == 0, worked.stderr
    assert {"charged 99", "mailed bob", "nightly ran"} <= set(worked.stdout.splitlines())
    assert [json.loads(line)["level"] for line in worked.stderr.splitlines()], "logs are JSON lines"
    for message in (id, ran):
        assert json.loads(either.spawn("jobs", "show", message, "--format", "json").stdout)["status"] == "delivered"


CHECKED = """
from dataclasses import dataclass
from holdfast import Holdfast, event

hf = Holdfast()

@event("order.placed")
@dataclass
class OrderPlaced:
    order_id: int

@hf.consumer(OrderPlaced, name="billing")
def billing(order: OrderPlaced) -> None: ...

@hf.job()
def mail(to: str) -> None: ...
"""


def test_publish_and_enqueue_check_against_the_app(shop: Shop) -> None:
    (shop.folder / "checked.py").write_text(CHECKED)
    for words, text in (
        (("publish", "order.placed", '{"order_id": "x"}'), "order_id"),
        (("publish", "order.placed", "[1]"), "order.placed"),
        (("publish", "order.placed", "{}"), "order_id"),
        (("enqueue", "mail", '{"too": "ada"}'), "job mail has no such parameter; it takes to"),
        (("enqueue", "mail", '{"to": 7}'), "to"),
    ):
        refused = shop.spawn(*words, "--app", "checked:hf")
        assert (refused.returncode, refused.stdout, text in refused.stderr) == (2, "", True), refused.stderr
        assert shop.run(*words).exit_code == 0, "without the app nothing is known about it"
    assert shop.spawn("publish", "order.placed", '{"order_id": 7}', "--app", "checked:hf").returncode == 0
    assert shop.spawn("enqueue", "mail", '{"to": "ada"}', "--app", "checked:hf").returncode == 0


def test_an_event_that_no_consumer_gets_is_stored_with_a_note(shop: Shop) -> None:
    stored = shop.run("publish", "odrer.placed", "{}", "--key", "k")
    assert (stored.exit_code, len(stored.stdout.strip())) == (0, 36)
    assert stored.stderr == (
        "stored, but no consumer subscribes to odrer.placed; did you mean order.placed? subscribed types: order.*, order.placed\n"
    )
    assert "no consumer subscribes" not in shop.run("publish", "odrer.placed", "{}", "--key", "k").stderr
    assert shop.run("publish", "order.returned", "{}").stderr == "", "a prefix matches it"


def test_an_operator_command_imports_no_user_code_unless_it_must(shop: Shop) -> None:
    (shop.folder / "loud.py").write_text("print('imported')\n" + APP)
    quiet = shop.spawn("stats", "--schema", "holdfast", HOLDFAST_APP="loud:hf")
    assert (quiet.returncode, "imported" in quiet.stdout + quiet.stderr) == (0, False)
    loud = shop.spawn("stats", "--format", "json", HOLDFAST_APP="loud:hf")
    assert (loud.returncode, "imported" in loud.stderr) == (0, True), "its schema is needed"
    assert json.loads(loud.stdout)["failed"] == 5
    environment = {k: v for k, v in shop.environment().items() if k != "HOLDFAST_DSN"}
    (shop.folder / "pyproject.toml").write_text('[tool.holdfast]\napp = "own:hf"\n')
    (shop.folder / "own.py").write_text(f"from holdfast import Holdfast\nhf = Holdfast({shop.dsn!r})\n")
    found = subprocess.run(command("stats"), capture_output=True, text=True, cwd=shop.folder, env=environment)
    assert (found.returncode, "failed 5" in found.stdout) == (0, True), found.stderr


def test_a_command_uses_the_schema_of_the_app(shop: Shop) -> None:
    (shop.folder / "other.py").write_text("from holdfast import Holdfast\nhf = Holdfast(schema='other')\n")
    assert shop.spawn("schema", "migrate", HOLDFAST_APP="other:hf").returncode == 0
    for words, more in ((("--app", "other:hf"), {}), ((), {"HOLDFAST_APP": "other:hf"})):
        assert "failed 0" in shop.spawn("stats", *words, **more).stdout
        assert "failed 5" in shop.spawn("stats", *words, "--schema", "holdfast", **more).stdout, "an option decides"
    (shop.folder / "pyproject.toml").write_text('[tool.holdfast]\napp = "other:hf"\n')
    assert "failed 0" in shop.spawn("stats").stdout
    missing = shop.spawn("stats", HOLDFAST_APP="absent:hf")
    assert (missing.returncode, "pass --schema to use the store without the app" in missing.stderr) == (6, True)


def test_a_worker_whose_app_has_a_store_refuses_another(shop: Shop) -> None:
    (shop.folder / "own.py").write_text("from holdfast import Holdfast\nhf = Holdfast('sqlite:///own.db')\n")
    result = shop.spawn("worker", "--app", "own:hf", "--dsn", shop.dsn, "--until-idle")
    assert (result.returncode, "sets its store explicitly" in result.stderr) == (2, True)


def test_a_worker_whose_app_has_a_store_says_that_it_ignores_the_environment(shop: Shop) -> None:
    (shop.folder / "own.py").write_text("from holdfast import Holdfast\nhf = Holdfast('sqlite:///own.db')\n")
    result = shop.spawn("worker", "--app", "own:hf", "--until-idle", "--log-format", "json")
    lines = [json.loads(line) for line in result.stderr.splitlines()]
    (warning,) = [line for line in lines if line["event"] == "environment store ignored"]
    assert (warning["store"], warning["environment"]) == ("sqlite:///own.db", shop.dsn)
    (started,) = [line for line in lines if line["event"] == "worker started"]
    assert started["store"] == "sqlite:///own.db"


def test_a_command_in_a_log_line_leads_to_the_store_of_the_worker(shop: Shop) -> None:
    (shop.folder / "failing.py").write_text(FAILING)
    worker = ("worker", "--app", "failing.py:hf", "--until-idle", "--log-format", "console")
    assert shop.spawn(*worker, HOLDFAST_DSN="").returncode == 0
    enqueued = shop.spawn("enqueue", "fail", "{}", "--app", "failing.py:hf", HOLDFAST_DSN="")
    assert enqueued.returncode == 0, enqueued.stderr
    worked = shop.spawn(*worker, HOLDFAST_DSN="")
    (printed,) = re.findall(r"; holdfast (dlq show .* --app failing\.py:hf)$", worked.stderr, re.MULTILINE)
    shown = shop.spawn(*printed.split(), HOLDFAST_DSN="")
    assert "no such card" in shown.stdout, shown.stderr


def test_a_worker_stops_in_good_order(shop: Shop) -> None:
    process = shop.start("worker", "--app", f"{app(shop)}:hf", "--log-format", "json", "--generation", "41")
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if json.loads(line)["event"] == "worker started":
                break
        second = shop.spawn("worker", "--app", f"{app(shop)}:hf", "--until-idle")
        assert (second.returncode, "another worker" in second.stderr) == (4, True), second.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()


def test_watching_ends_with_the_code_for_an_interrupt(shop: Shop) -> None:
    process = shop.start("stats", "--watch", "--every", "0.1s", "--format", "jsonl")
    try:
        assert process.stdout is not None
        seen = [json.loads(process.stdout.readline()) for _ in range(3)]
        assert [one["failed"] for one in seen] == [5, 5, 5]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.communicate()


def test_watching_ends_when_a_condition_holds(shop: Shop) -> None:
    result = shop.spawn("stats", "--watch", "--fail-if", "failed>=5")
    assert (result.returncode, "failed is 5 (>= 5)" in result.stderr) == (1, True)


@pytest.mark.parametrize("format", ["jsonl", "table"])
def test_a_reader_that_goes_away_is_no_error(shop: Shop, format: str) -> None:
    read, write = os.pipe()
    process = subprocess.Popen(
        command("deliveries", "list", "--format", format),
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        env=shop.environment(),
    )
    os.close(write)
    os.close(read)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")


def test_dead_letters_are_exported_with_their_messages(shop: Shop) -> None:
    to_stdout = [json.loads(line) for line in shop.run("dlq", "export").stdout.splitlines()]
    result = shop.run("dlq", "export", "--output", shop.folder / "out.jsonl", "--limit", "2")
    assert (result.stdout, "exported 2 dead letters" in result.stderr) == ("", True)
    to_file = [json.loads(line) for line in (shop.folder / "out.jsonl").read_text().splitlines()]
    assert to_file == to_stdout[:2]
    assert [one["id"] for one in to_stdout] == [str(id) for id in shop.dead]
    assert {one["message"]["payload"]["order_id"] for one in to_stdout} <= set(range(6))


def test_the_lists_of_queues_and_consumers_show_the_pause_of_the_other(shop: Shop) -> None:
    shop.run("consumers", "pause", "mail")
    shop.run("queues", "pause", "payments")
    (queue,) = [line for line in shop.run("queues", "list").stdout.splitlines() if line.startswith("mail ")]
    assert "paused: mail" in queue
    (consumer,) = [line for line in shop.run("consumers", "list").stdout.splitlines() if line.startswith("billing ")]
    assert "queue paused " in consumer


def test_queues_consumers_and_schedules_are_paused_and_resumed(shop: Shop) -> None:
    for noun, name in (("queues", "mail"), ("consumers", "mail"), ("schedules", "nightly")):
        assert shop.run(noun, "pause", name, "--reason", "night").exit_code == 0
        (row,) = [one for one in json.loads(shop.run(noun, "list", "--format", "json").stdout) if one["name"] == name]
        assert row["paused_at"] is not None
        assert "paused" in shop.run(noun, "list").stdout
        resumed = shop.run(noun, "resume", name)
        assert (resumed.exit_code, "resumed" in resumed.stderr) == (0, True)
        again = shop.run(noun, "resume", name)
        assert (again.exit_code, "was n" in again.stderr) == (0, True)
    actions = [one.action for one in shop.ask(audit(limit=6))]
    assert actions == ["resume", "pause"] * 3


def test_a_schedule_is_put_shown_and_removed(shop: Shop) -> None:
    words = (
        "schedules",
        "put",
        "mail:7",
        "mail",
        "--every",
        "90m",
        "--args",
        '{"to": "ada"}',
        "--reason",
        "new tenant",
    )
    assert shop.run(*words).exit_code == 0
    shown = json.loads(shop.run("schedules", "show", "mail:7").stdout)
    assert (shown["job"], shown["args"], shown["expression"]) == ("mail", {"to": "ada"}, "every 1h 30m")
    listed = shop.run("schedules", "list", "--prefix", "mail:", "--limit", "1")
    assert ("mail:7" in listed.stdout, "--after mail:7" in listed.stderr) == (True, True)
    assert "mail:7" not in shop.run("schedules", "list", "--after", "mail:7").stdout
    assert shop.run("schedules", "put", "mail:8", "mail", "--at", "2020-01-01T00:00Z").exit_code == 2
    without_zone = shop.run("schedules", "put", "mail:8", "mail", "--at", "2099-01-01T00:00")
    assert without_zone.exit_code == 2
    assert "`at` is '2099-01-01T00:00', without a time zone; add Z for UTC" in without_zone.stderr
    assert shop.run("schedules", "put", "mail:8", "mial", "--every", "1h").exit_code == 3
    assert shop.run("schedules", "remove", "mail:7", "--yes").exit_code == 0
    assert shop.run("schedules", "show", "mail:7").exit_code == 3
    assert [(one.action, one.reason) for one in shop.ask(audit(limit=2))] == [("remove", None), ("put", "new tenant")]


def test_a_subscription_is_ended_and_others_catch_up(shop: Shop) -> None:
    ended = shop.run("consumers", "retire", "receipts", "--yes", "--format", "json")
    assert json.loads(ended.stdout) == {"consumer": "receipts", "ended": ["order.*"]}
    assert shop.run("consumers", "catch-up", "--format", "json").exit_code == 0
    shop.run("publish", "order.placed", '{"order_id": 1}')
    newest = shop.ask(messages(limit=1))[0]
    assert [one.delivery.consumer for one in shop.ask(deliveries(Filter(message_id=newest.id), 10))] == ["billing"]


def test_the_tables_are_made_and_checked(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shop.folder)
    fresh = ("--dsn", "sqlite:///fresh.db")
    assert shop.run(*fresh, "schema", "status").exit_code == 5
    made = shop.run(*fresh, "schema", "migrate")
    assert (made.exit_code, made.stdout.startswith("0001 foundation")) == (0, True)
    assert shop.run(*fresh, "schema", "migrate").stdout == ""
    assert json.loads(shop.run(*fresh, "schema", "status", "--format", "json").stdout)["current"]
    sql = shop.run("--dsn", DEAF_AND_FAR, "schema", "sql").stdout
    assert 'create schema if not exists "holdfast"' in sql
    assert "create table" in shop.run(*fresh, "schema", "sql").stdout


DEAF_AND_FAR = "postgresql://shop:s3cr3t@127.0.0.1:1/shop"


def test_pruning_looks_first(shop: Shop) -> None:
    time.sleep(0.01)
    counted = json.loads(shop.run("prune", "--older-than", "0s", "--dry-run", "--format", "json").stdout)
    assert counted == {"delivered": 6, "discarded": 0, "messages": 0, "idempotency_keys": 0}
    assert shop.run("prune", "--older-than", "0s", "--yes", "--discarded", "--format", "json").exit_code == 0
    assert shop.ids(statuses=(Status.DELIVERED,)) == []
    assert len(shop.dead) == 5


def test_the_doctor_fails_a_script_only_for_what_counts(shop: Shop) -> None:
    found = json.loads(shop.run("doctor", "--format", "json").stdout)
    assert {one["level"] for one in found} <= {"ok", "warn", "fail"}
    shop.run("jobs", "cancel", shop.waiting, "--yes")
    assert shop.run("doctor").exit_code == 1, "dead letters of the last minutes are a failure"
    shop.run("dlq", "discard", *map(str, shop.dead), "--yes", "--reason", "not needed")
    assert shop.run("doctor").exit_code == 0
    shop.run("consumers", "pause", "mail")
    assert shop.run("doctor").exit_code == 0
    strict = shop.run("doctor", "--strict")
    assert (strict.exit_code, "holdfast consumers resume mail" in strict.stdout) == (1, True)


def test_a_condition_that_holds_is_a_failed_check(shop: Shop) -> None:
    broken = shop.run("stats", "--fail-if", "failed>4,oldest>1h")
    assert (broken.exit_code, broken.stderr) == (1, "check failed: failed is 5 (> 4)\n")
    assert shop.run("stats", "--fail-if", "failed>5,oldest>1h").exit_code == 0


def test_a_request_is_followed_by_its_id(shop: Shop) -> None:
    # One of the orders was discarded, which of them chance decided.
    answers = {id: shop.run("messages", "trace", id) for id in ("r-3", "r-4")}
    assert {answer.exit_code for answer in answers.values()} == {0}
    id, output = next((id, one.stdout) for id, one in answers.items() if "  billing: failed" in one.stdout)
    lines = output.splitlines()
    assert lines[0].startswith("order.placed from shop")
    assert any("run 2 failed" in line and "card declined" in line for line in lines)
    assert json.loads(shop.run("messages", "trace", id, "--format", "json").stdout)["request_id"] == id
    assert shop.run("messages", "trace", "r-none").exit_code == 3
