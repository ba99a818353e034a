"""What a command prints: JSON that scripts can read, tables that people can, nothing that harms a terminal."""

import doctest
import io
import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from rich.console import Console

from holdfast.core.redaction.mask import REDACTED, mask
from holdfast.interfaces.cli.deliveries.delivery_report import last_frames
from holdfast.interfaces.cli.table import Column, lines_of
from holdfast.interfaces.presentation import formatting
from holdfast.interfaces.presentation.formatting import ago, moment, printable, rough
from holdfast.stores.queries import delivery_counts
from tests.cli.build import ORDERS, WORKER
from tests.cli.conftest import Shop

NOW = datetime(2026, 11, 15, 9, tzinfo=UTC)

LISTS = {
    "dlq list": 5,
    "dlq groups": 1,
    "deliveries list": 13,
    "messages list": 7,
    "jobs list": 1,
    "queues list": 2,
    "consumers list": 4,
    "schedules list": 1,
    "workers list": 1,
    "audit list": 1,
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_is_one_array_or_one_object_a_line(shop: Shop, name: str) -> None:
    whole = json.loads(shop.run(*name.split(), "--format", "json").stdout)
    lines = [json.loads(line) for line in shop.run(*name.split(), "--format", "jsonl").stdout.splitlines()]
    assert len(whole) == LISTS[name]
    drop = {"lag"}
    assert [{k: v for k, v in one.items() if k not in drop} for one in lines] == [
        {k: v for k, v in one.items() if k not in drop} for one in whole
    ]


@pytest.mark.parametrize("name", LISTS)
def test_a_table_in_a_pipe_is_whole_and_plain(shop: Shop, name: str) -> None:
    out = shop.run(*name.split()).stdout
    assert "\x1b" not in out
    assert "…" not in out
    assert len(out.splitlines()) == LISTS[name] + 2
    for one in json.loads(shop.run(*name.split(), "--format", "json").stdout):
        assert str(one.get("id") or one.get("name") or one.get("fingerprint")) in out


def test_ids_in_json_lead_on_to_the_item(shop: Shop) -> None:
    for noun in ("deliveries", "messages", "jobs", "dlq"):
        for one in json.loads(shop.run(noun, "list", "--format", "json").stdout):
            shown = json.loads(shop.run(noun, "show", one["id"], "--format", "json").stdout)
            assert shown["id"] == one["id"]
            assert all(shown[name] == value for name, value in one.items())


def test_pages_hang_together(shop: Shop) -> None:
    everything = [one["id"] for one in json.loads(shop.run("deliveries", "list", "--format", "json").stdout)]
    seen: list[str] = []
    while page := json.loads(
        shop.run(
            "deliveries", "list", "--limit", "4", *(("--before", seen[-1]) if seen else ()), "--format", "json"
        ).stdout
    ):
        seen += [one["id"] for one in page]
    assert seen == everything


def test_filters_narrow_a_list(shop: Shop) -> None:
    def count(*args: str) -> int:
        return len(json.loads(shop.run("deliveries", "list", *args, "--format", "json").stdout))

    assert count("--status", "delivered") == ORDERS
    assert count("--status", "failed") == ORDERS - 1
    assert count("--status", "discarded") == 1
    assert count("--status", "failed", "--status", "delivered") == 2 * ORDERS
    assert count("--consumer", "billing", "--consumer", "mail") == ORDERS + 1
    assert count("--type", "job.*") == 1
    assert count("--error-type", "RuntimeError") == ORDERS
    assert count("--queue", "mail") == 1
    assert count("--since", "1h") == 2 * ORDERS + 1
    assert count("--until", "1h") == 0
    assert count("--queue", "mail", "--status", "failed") == 0


def test_options_may_stand_before_or_after_a_command(shop: Shop) -> None:
    outputs = {
        shop.run(*args).stdout
        for args in (
            ("--format", "json", "dlq", "list"),
            ("dlq", "--format", "json", "list"),
            ("dlq", "list", "--format", "json"),
            ("--format", "table", "dlq", "list", "--format", "json"),
        )
    }
    assert len(outputs) == 1
    before = shop.run("--actor", "ada", "queues", "pause", "mail")
    after = shop.run("queues", "resume", "mail", "--actor", "bob")
    assert before.exit_code == after.exit_code == 0
    acted = json.loads(shop.run("audit", "list", "--limit", "2", "--format", "json").stdout)
    assert [one["actor"] for one in acted] == ["bob", "ada"]


def test_without_a_name_the_actor_is_the_user_at_the_host(shop: Shop) -> None:
    shop.run("queues", "pause", "mail")
    (entry,) = json.loads(shop.run("audit", "list", "--limit", "1", "--format", "json").stdout)
    assert re.fullmatch(r".+@.+", entry["actor"])


def test_the_report_of_a_dead_letter_is_complete(shop: Shop) -> None:
    shop.run("replay", "--id", shop.dead[0], "--actor", "ada", "--reason", "try")
    id = shop.dead[0]
    report = shop.run("dlq", "show", id).stdout
    for part in (
        f"FAILED  {id}",
        "order.placed from shop",
        "billing, queue payments, priority 1",
        "2 of 2",
        "Failure",
        "RuntimeError: card declined for order 7",
        "in charge",
        "4 dead letters in its failure group, including this one",
        "Runs",
        f"on {WORKER}",
        "Deliveries of the same message to other consumers",
        "receipts  delivered",
        f"holdfast replay --id {id}",
        f"holdfast dlq discard {id}",
    ):
        assert part in report, part
    replayed = next(one for one in shop.ids(consumers=("billing",)) if one not in shop.dead)
    shown = shop.run("dlq", "show", replayed)
    assert "not a dead letter; its state is pending" in shown.stderr
    assert "replayed by ada" in shown.stdout
    assert "after 2 runs at generation 0: try" in shown.stdout


def test_what_others_wrote_cannot_command_the_terminal(shop: Shop) -> None:
    for args in (("dlq", "show", shop.dead[0]), ("messages", "list"), ("deliveries", "list")):
        assert "\x1b" not in shop.run(*args).output
    report = shop.run("dlq", "show", shop.dead[0]).stdout
    assert "[bold]markup[/bold]" in report, "markup in a payload is text"
    assert printable("a\x1b[2Jb\x07\u202ec") == "a\\x1b[2Jb\\x07\\u202ec"


def test_the_report_of_a_dead_letter_fits_a_terminal_of_80_columns(shop: Shop) -> None:
    id = shop.dead[0]
    whole = shop.run("dlq", "show", id).stdout
    assert max(map(len, whole.splitlines())) > 80, "a pipe gets whole lines"
    code, printed = shop.on_terminal("dlq", "show", id)
    assert code == 0
    commands = [line for line in whole.splitlines() if "  holdfast " in line]
    assert set(commands) <= set(printed.splitlines()), "commands can be copied"
    assert [line for line in printed.splitlines() if len(line) > 80 and line not in commands] == []
    assert "in its failure group, including this one" in " ".join(printed.split())


def test_colour_only_on_a_terminal_and_not_against_a_wish(shop: Shop) -> None:
    assert "\x1b[" not in shop.run("dlq", "list").stdout
    forced = shop.run("deliveries", "list", env={"FORCE_COLOR": "1"}).stdout
    assert re.search("\x1b\\[3[0-7]m", forced)
    refused = shop.run("deliveries", "list", env={"NO_COLOR": "1", "FORCE_COLOR": "1"}).stdout
    assert not re.search("\x1b\\[3[0-7]m", refused)


def test_lists_of_nothing_say_so_on_stderr(shop: Shop) -> None:
    nothing = shop.run("dlq", "list", "--consumer", "nightly")
    assert (nothing.exit_code, nothing.stdout, nothing.stderr) == (0, "", "no dead letters\n")
    assert json.loads(shop.run("dlq", "list", "--consumer", "nightly", "--format", "json").stdout) == []


def test_stats_add_up(shop: Shop) -> None:
    read = json.loads(shop.run("stats", "--format", "json").stdout)
    assert (read["failed"], read["discarded"], read["pending"], read["workers"]) == (5, 1, 1, 1)
    assert sum(load["failed"] for load in read["loads"]) == 5
    assert "failed 5" in shop.run("stats").stdout


def test_counts_end_at_a_bound_unless_more_is_asked_for(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery_counts, "_FEW", 2)
    monkeypatch.setattr(delivery_counts, "BUDGET", 2)
    assert "failed 2+" in shop.run("stats").stdout
    assert "failed 5 " in shop.run("stats", "--exact").stdout
    beyond = shop.run("stats", "--fail-if", "failed>4")
    assert (beyond.exit_code, "failed is 5 (> 4)" in beyond.stderr) == (1, True), "that one counts to the end"
    assert shop.run("stats", "--fail-if", "failed>5").exit_code == 0
    assert "failed is 2+ (> 1)" in shop.run("stats", "--fail-if", "failed>1").stderr
    assert re.search(r"\b2\+", shop.run("dlq", "groups").stdout)
    assert re.search(r"\b2\+", shop.run("queues", "list").stdout)


def test_the_pending_deliveries_of_a_queue_are_one_number(shop: Shop) -> None:
    listed = {one["name"]: one["pending"] for one in json.loads(shop.run("queues", "list", "--format", "json").stdout)}
    name, pending = max(listed.items(), key=lambda one: one[1])
    assert pending == 1
    assert shop.run("queues", "pending", name).stdout == "1\n"
    read = json.loads(shop.run("queues", "pending", name, "--consumer", "billing", "--format", "json").stdout)
    assert read == {"queue": name, "consumer": "billing", "pending": 0, "at_least": []}
    assert shop.run("queues", "pending", name, "--consumer", "unknown").exit_code == 3
    assert shop.run("queues", "pending", name, "--most", "0").exit_code == 2
    assert shop.run("queues", "pending", "a b").exit_code == 2


def test_the_version_is_shown(shop: Shop) -> None:
    from holdfast import __version__

    assert shop.run("version").stdout.startswith(f"holdfast {__version__}\n")
    assert json.loads(shop.run("version", "--format", "json").stdout)["holdfast"] == __version__


COLUMNS: list[Column[UUID]] = [
    Column("ID", lambda one: one),
    Column("WHEN", lambda one: "3m ago", longer=lambda one: "3m ago (2026-11-15 09:00:00Z)"),
    Column("RUNS", lambda one: 3, right=True),
    Column("ERROR", lambda one: "card declined " * 5, loose=True),
]


@pytest.mark.parametrize("width", [40, 60, 80, 90, 100, 120, 160, 300])
def test_a_table_fits_every_width_and_never_cuts_an_id(width: int) -> None:
    ids = [UUID(int=n) for n in range(3)]
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False)
    lines = lines_of(ids, COLUMNS, width)
    for line in lines:
        assert line.cell_len <= width or line.cell_len <= 36 + 2
        console.print(line, soft_wrap=True)
    for id in ids:
        assert str(id) in out.getvalue()
    assert ("2026-11-15" in out.getvalue()) is (width >= 130), "the absolute time where there is room for it"
    assert ("runs 3" in out.getvalue()) is (width < 80), "a list that flows names its numbers"


def test_times_are_relative_and_absolute() -> None:
    assert ago(NOW - timedelta(minutes=83), NOW) == "1h 23m ago"
    assert ago(NOW + timedelta(days=40), NOW) == "in 40d"
    assert ago(NOW, NOW) == "just now"
    assert moment(NOW - timedelta(seconds=5), NOW) == "5s ago (2026-11-15 08:59:55Z)"
    assert moment(None, NOW) == ""
    assert [rough(timedelta(seconds=s)) for s in (0, 59, 60, 90, 3600, 86400 * 9 + 3700)] == [
        "0s",
        "59s",
        "1m",
        "1m 30s",
        "1h",
        "9d 1h",
    ]


def test_where_it_broke_is_the_end_of_the_trace() -> None:
    frames = "".join(f'  File "f{n}.py", line {n}, in f{n}\n    call()\n' for n in range(30))
    trace = f"Traceback (most recent call last):\n{frames}ValueError: boom\n  with a second line\n"
    assert last_frames(trace)[0].startswith('  File "f27.py"')
    assert len([line for line in last_frames(trace) if "File" in line]) == 3
    assert last_frames("") == []
    assert last_frames("ValueError: boom") == []


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://user:s3cr3t@host/db",
        "cannot reach 'postgresql://user:s3@cr3t@host:5432/db?sslmode=require' now",
        "host=h user=u password=s3cr3t dbname=d",
        "host=h password='s3 cr3t'",
        "postgresql://h/db?password=s3cr3t&x=1",
    ],
)
def test_passwords_are_not_printed(text: str) -> None:
    assert "cr3t" not in mask(text)
    assert REDACTED in mask(text)


def test_the_formatting_examples_hold() -> None:
    assert doctest.testmod(formatting).failed == 0


@pytest.mark.parametrize("format", ["console", "json"])
def test_logs_go_to_stderr_and_show_no_local_variable(shop: Shop, format: str) -> None:
    program = (
        "import structlog\n"
        "from holdfast.interfaces.cli.logs import configure_logs\n"
        f"configure_logs({format!r}, 'info')\n"
        "def handler(password):\n    raise ValueError('broken')\n"
        "try:\n    handler('s3cr3t')\n"
        "except ValueError:\n    structlog.get_logger('x').exception('it broke', consumer='mail')\n"
        "structlog.get_logger('x').debug('too quiet')\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=shop.environment())
    assert ran.stdout == ""
    assert "ValueError: broken" in ran.stderr.encode().decode("unicode_escape")
    assert "mail" in ran.stderr
    assert "too quiet" not in ran.stderr
    assert "password = " not in ran.stderr
    assert "s3cr3t'" not in ran.stderr.replace("handler('s3cr3t')", "")
    if format == "json":
        assert json.loads(ran.stderr)["event"] == "it broke"


STANDARD_LIBRARY = """
import logging, sys
import structlog
from holdfast.interfaces.cli.logs import configure_logs
own = logging.StreamHandler(sys.stderr)
own.setFormatter(logging.Formatter("own %(message)s"))
logging.getLogger("django").addHandler(own)
configure_logs(sys.argv[1], "info")
structlog.contextvars.bind_contextvars(request_id="r-1")
logging.getLogger("shop").info("not at this level")
logging.getLogger("shop").warning("paid with postgresql://ada:s3cr3t@db/shop")
logging.getLogger("django.request").warning("once")
try:
    raise ValueError("broken")
except ValueError:
    logging.getLogger("shop").exception("it broke")
"""


@pytest.mark.parametrize("format", ["console", "json"])
def test_records_of_the_standard_library_have_the_same_format(shop: Shop, format: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", STANDARD_LIBRARY, format], capture_output=True, text=True, env=shop.environment()
    )
    assert "s3cr3t" not in ran.stderr
    assert "not at this level" not in ran.stderr
    # The logger of another library that writes to the same terminal already is not repeated.
    assert [line for line in ran.stderr.splitlines() if "once" in line] == ["own once"]
    lines = [line for line in ran.stderr.splitlines() if line != "own once"]
    if format == "json":
        paid, broke = map(json.loads, lines)
        assert (paid["level"], paid["logger"], paid["request_id"]) == ("warning", "shop", "r-1")
        assert paid["event"].startswith("paid with postgresql://")
        assert broke["exception"].endswith("ValueError: broken")
    else:
        assert re.match(r"\d\d:\d\d:\d\d warning paid with .* logger=shop", lines[0])
        assert lines[-1].strip() == "ValueError: broken"


def test_the_totals_of_stats_break_before_the_time_where_they_do_not_fit(shop: Shop) -> None:
    code, printed = shop.on_terminal("stats")
    assert code == 0
    assert re.fullmatch(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\dZ", printed.splitlines()[-1])


def test_a_headers_name_can_neither_command_the_terminal_nor_forge_a_line(shop: Shop) -> None:
    published = shop.run(
        "publish", "order.placed", "{}", "--header", "x\x1b[2J\nstatus\u202e=delivered\nby ada", "--format", "json"
    )
    id = json.loads(published.stdout)["id"]
    shown = shop.run("messages", "show", id).output
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert not [line for line in shown.splitlines() if line.startswith(("status", "by ada"))]


def test_times_keep_their_titles_where_a_table_does_not_fit() -> None:
    columns: list[Column[tuple[str, str]]] = [
        Column("NAME", lambda one: one[0]),
        Column("SINCE", lambda one: one[1], titled=True),
    ]
    items = [("a-name-that-is-long", "1h 2m ago")]
    assert [line.plain for line in lines_of(items, columns, 20)] == ["a-name-that-is-long", "  since 1h 2m ago"]
