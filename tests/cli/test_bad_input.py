"""Bad input on every command: one clear line, the right exit code, never a traceback."""

import json
import os
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from holdfast.interfaces.cli import main
from holdfast.runtime.store_factory import open_store
from tests.cli.conftest import Shop
from tests.servers.postgres import PostgresServer

ABSENT = "01a1de9e-3feb-7141-acf8-3a160ca18709"
DEAF = "postgresql://shop:s3cr3t@127.0.0.1:1/shop"

# Every command with arguments it would take on a good day: the test below sees to it that none is missing.
GOOD: dict[str, tuple[str, ...]] = {
    "worker": ("--app", "nowhere:hf"),
    "publish": ("order.placed", "{}"),
    "enqueue": ("mail", "{}"),
    "replay": ("--status", "failed", "--yes"),
    "search": ("card declined",),
    "dlq list": (),
    "dlq show": (ABSENT,),
    "dlq groups": (),
    "dlq discard": ("--consumer", "billing", "--yes"),
    "dlq export": (),
    "deliveries list": (),
    "deliveries show": (ABSENT,),
    "deliveries cancel": ("--consumer", "billing", "--yes"),
    "messages list": (),
    "messages show": (ABSENT,),
    "messages trace": ("r-none",),
    "console": ("--port", "0"),
    "jobs list": (),
    "jobs show": (ABSENT,),
    "jobs cancel": (ABSENT, "--yes"),
    "groups list": (),
    "groups show": (ABSENT,),
    "groups cancel": (ABSENT, "--yes"),
    "queues list": (),
    "queues pending": ("mail",),
    "queues pause": ("mail",),
    "queues resume": ("mail",),
    "queues limit": ("mail", "--limit", "5"),
    "consumers list": (),
    "consumers keys": ("mail",),
    "consumers limit": ("mail", "--limit", "5"),
    "consumers pause-key": ("mail", "a"),
    "consumers resume-key": ("mail", "a"),
    "consumers pause": ("mail",),
    "consumers resume": ("mail",),
    "consumers retire": ("billing", "--yes"),
    "consumers catch-up": (),
    "schedules list": (),
    "schedules show": ("nightly",),
    "schedules put": ("mail:7", "mail", "--every", "1h"),
    "schedules run": ("nightly",),
    "schedules pause": ("nightly",),
    "schedules resume": ("nightly",),
    "schedules remove": ("nightly", "--yes"),
    "webhooks list": (),
    "webhooks add": ("https://acme.test/in", "--event", "order.*"),
    "webhooks test": ("0123456789abcdef",),
    "webhooks disable": ("0123456789abcdef", "--reason", "gone"),
    "webhooks enable": ("0123456789abcdef",),
    "webhooks rotate-secret": ("0123456789abcdef",),
    "breakers list": (),
    "breakers reset": ("mail",),
    "breakers trip": ("mail", "--force"),
    "idempotency list": (),
    "idempotency show": ("ada", "absent"),
    "idempotency release": ("ada", "absent"),
    "workflows list": (),
    "workflows names": (),
    "workflows show": (ABSENT,),
    "workflows run": ("shop", "{}"),
    "workflows signal": (ABSENT, "approved"),
    "workflows trigger": (ABSENT, "ship"),
    "workflows retry": (ABSENT,),
    "workflows cancel": (ABSENT, "--yes"),
    "workflows fork": (ABSENT, "ship", "--yes"),
    "workers list": (),
    "stats": (),
    "top": (),
    "tail": ("--once",),
    "doctor": (),
    "schema sql": (),
    "schema status": (),
    "schema migrate": (),
    "audit list": (),
    "plans list": (),
    "plans show": (ABSENT,),
    "plans start": (ABSENT,),
    "plans pause": (ABSENT,),
    "plans resume": (ABSENT,),
    "plans abandon": (ABSENT,),
    "tokens list": (),
    "tokens create": ("--name", "ci"),
    "tokens revoke": ("ci",),
    "prune": ("--older-than", "30d", "--yes"),
    "encryption keys": (),
    "encryption rotate": ("--yes",),
    "projectors list": (),
    "projectors rebuild": ("totals",),
    "drill list": (),
    "drill run": (),
    "mcp": (),
    "completion": ("bash",),
    "version": (),
}
# Without a store: a drill creates a temporary one.
ALONE = {"completion", "version", "drill list", "drill run"}
OFFLINE = {"schema sql", *ALONE}
NEEDS_APP = {"worker", "projectors rebuild"}
STORE = [name for name in GOOD if name not in OFFLINE | NEEDS_APP]
TABLES = [name for name in STORE if name not in {"schema status", "schema migrate", "doctor"}]


def leaves(group: click.Group, path: str = "") -> Iterator[str]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if isinstance(found, click.Group):
            yield from leaves(found, f"{path}{name} ")
        else:
            yield f"{path}{name}"


def words(name: str) -> tuple[str, ...]:
    return (*name.split(), *GOOD[name])


def test_no_command_is_missing_here() -> None:
    assert set(leaves(main)) - {"demo"} == set(GOOD)


@pytest.mark.parametrize("name", STORE)
def test_a_store_that_cannot_be_reached_is_named_without_its_password(shop: Shop, name: str) -> None:
    result = shop.run("--dsn", DEAF, *words(name))
    assert result.exit_code == 5, result.stderr
    assert result.stderr.startswith("error: store postgresql://127.0.0.1:1/shop is unavailable")
    assert "s3cr3t" not in result.output
    assert result.stdout == ""


@pytest.mark.parametrize("name", [name for name in STORE if name != "schema migrate"])
def test_a_file_that_is_not_there_is_not_made(shop: Shop, name: str) -> None:
    result = shop.run("--dsn", f"sqlite:///{shop.folder / 'typo.db'}", *words(name))
    assert (result.exit_code, result.stdout) == (5, ""), result.stderr
    assert "does not exist; if the path is right, create the file with" in result.stderr
    assert not (shop.folder / "typo.db").exists()


@pytest.mark.parametrize("name", TABLES)
def test_missing_tables_say_how_to_make_them(shop: Shop, name: str) -> None:
    (shop.folder / "empty.db").touch()
    dsn = f"sqlite:///{shop.folder / 'empty.db'}"
    result = shop.run("--dsn", dsn, *words(name))
    assert (result.exit_code, result.stdout) == (5, ""), result.stderr
    migrate = f"`holdfast schema migrate --dsn {dsn}`"
    assert result.stderr == f"error: schema 'holdfast' has no Holdfast tables; run {migrate}\n"


@pytest.mark.parametrize("name", [name for name in GOOD if name not in ALONE])
def test_without_a_store_or_an_app_a_command_asks_for_one(
    shop: Shop, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shop.folder)
    given = name.split() if name == "worker" else words(name)
    result = shop.run(*given, env={"HOLDFAST_DSN": None})
    assert result.exit_code == 2
    assert result.stderr.startswith(
        "error: no app is configured" if name in NEEDS_APP else "error: no store is configured"
    )


@pytest.mark.parametrize("name", GOOD)
def test_an_unknown_option_points_to_the_help(shop: Shop, name: str) -> None:
    result = shop.run(*words(name), "--nonsense")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: no such option '--nonsense'")
    assert result.stderr.endswith(f"ee `holdfast {name} --help`\n")


@pytest.mark.parametrize("name", GOOD)
def test_every_command_explains_itself(shop: Shop, name: str) -> None:
    result = shop.run(*name.split(), "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: holdfast {name} ")


LISTS = ["dlq list", "deliveries list", "messages list", "jobs list"]
FILTERS = ["dlq list", "deliveries list", "dlq discard", "deliveries cancel", "dlq export", "replay"]
BY_ID = ["dlq show", "deliveries show", "messages show", "jobs show"]

CASES: list[tuple[tuple[str, ...], int, str]] = [
    *(((*name.split(), "nonsense"), 2, "is not an id") for name in BY_ID),
    *(((*name.split(), ABSENT[:-1]), 2, "is not an id") for name in BY_ID),
    *(((*name.split(), ABSENT), 3, ABSENT) for name in BY_ID),
    *(((*name.split(),), 2, "missing argument 'ID'") for name in BY_ID),
    *(((*name.split(), "--limit", bad), 2, "--limit") for name in LISTS for bad in ("0", "-5", "ten", "100000")),
    *(((*name.split(), "--before", "nonsense"), 2, "is not an id") for name in LISTS),
    *(((*name.split(), "--since", "yesterday"), 2, "neither an age") for name in FILTERS),
    *(((*name.split(), "--since", "5"), 2, "neither an age") for name in FILTERS),
    *(((*name.split(), "--since", "1h", "--until", "2h"), 2, "`since` must be before `until`") for name in FILTERS),
    *(((*name.split(), "--since", "2099-01-01"), 2, "is in the future") for name in FILTERS),
    (("audit", "list", "--since", "2099-01-01"), 2, "is in the future"),
    *(((*name.split(), "--type", "a..b"), 2, "pattern") for name in FILTERS),
    *(((*name.split(), "--type", "'; drop table x"), 2, "pattern") for name in FILTERS),
    *(((name, "list", "--status", "lost"), 2, "'lost' is not one of") for name in ("deliveries", "jobs")),
    (("deliveries", "list", "--status", "discarded", "--status", "failed"), 2, "cannot be combined with other states"),
    (("replay",), 2, "nothing is selected"),
    (("replay", "--id", "nonsense"), 2, "is not an id"),
    (("replay", "--id", ABSENT), 3, f"no delivery '{ABSENT}'"),
    (("replay", "--event-id", ABSENT), 3, f"no message '{ABSENT}'"),
    (("replay", "--id", ABSENT, "--status", "failed"), 2, "--id cannot be combined"),
    (("replay", "--status", "failed", "--limit", "-1"), 2, "--limit"),
    (("replay", "--status", "failed", "--limit", "1000000"), 2, "--limit"),
    (("replay", "--status", "failed", "--generation", "-1"), 2, "--generation"),
    (("replay", "--status", "failed"), 4, "stdin is not a terminal; pass --yes"),
    (("replay", "--plan", "absent.json"), 2, "cannot be read"),
    (("plans", "start", "abc"), 2, "is not an id"),
    (("worker", "--app", "nowhere:hf", "--lease", "1"), 2, "has no unit; write '250ms', '30s'"),
    (("queues", "limit", "mial", "--limit", "5"), 3, "did you mean 'mail'?"),
    (("queues", "limit", "mail"), 2, "a rate or a reset (--limit, --rate, --reset)"),
    (("schedules", "put", "x", "mail"), 2, "exactly one of cron, every and at"),
    (("enqueue", "mial", "{}"), 3, "use force (--force on the command line) to store it"),
    (("dlq", "discard"), 2, "nothing to discard is selected"),
    (("dlq", "discard", ABSENT), 3, ABSENT),
    (("dlq", "discard", ABSENT, "--consumer", "mail"), 2, "ids cannot be combined with filters"),
    (("dlq", "discard", "--consumer", "billing"), 4, "pass --yes"),
    (("dlq", "groups", "--limit", "0"), 2, "--limit"),
    (("dlq", "export", "--output", "/nowhere/x.jsonl"), 2, "cannot be written"),
    (("dlq", "nonsense"), 2, "no such command 'nonsense'"),
    (("deliveries", "cancel"), 2, "nothing to cancel is selected"),
    (("deliveries", "cancel", ABSENT), 3, ABSENT),
    (("deliveries", "cancel", "--consumer", "mail"), 4, "pass --yes"),
    (("jobs", "cancel"), 2, "missing argument"),
    (("jobs", "cancel", ABSENT), 3, f"no job '{ABSENT}'"),
    (("publish", "order.placed", "{bad"), 2, "is not JSON"),
    (("publish", "order.placed", ""), 2, "is not JSON"),
    (("publish", "no spaces", "{}"), 2, "type name 'no spaces' is invalid"),
    (("publish", "order.placed"), 2, "missing argument 'JSON|-'"),
    (("publish", "order.placed", "{}", "--key", ""), 2, "key"),
    (("publish", "order.placed", "{}", "--header", "nonsense"), 2, "does not have the form NAME=VALUE"),
    (("publish", "order.placed", "{}", "--source", "a b"), 2, "source name 'a b' is invalid"),
    (("publish", "order.placed", "{}", "--generation", "-1"), 2, "--generation"),
    (
        ("publish", "order.placed", '{"x": 1}', "--key", "order:1:placed:v1", "--source", "shop"),
        4,
        "already belongs to",
    ),
    (("enqueue", "unknown", "{}"), 3, "registered: mail, nightly"),
    (("enqueue", "billing", "{}"), 4, "a consumer of order.placed, not a job"),
    (("enqueue", "mail", "[1]"), 2, "a JSON object"),
    (("enqueue", "mail", "{}", "--delay", "5"), 2, "has no unit"),
    (("enqueue", "mail", "{}", "--delay", "-5s"), 2, "--delay"),
    (("enqueue", "mail", "{}", "--priority", "7"), 2, "--priority"),
    (("enqueue", "mail", "{}", "--queue", "a.b"), 2, "queue name 'a.b' is invalid"),
    (("queues", "pause", "nowhere"), 3, "known: mail, payments"),
    (("queues", "resume", "nowhere"), 3, "no queue 'nowhere'"),
    (("queues", "pending", "a b"), 2, "queue name 'a b' is invalid"),
    (("queues", "pending", "mail", "--most", "500001"), 2, "--most"),
    (("queues", "pause", "a b"), 2, "queue name 'a b' is invalid"),
    (("queues", "pause", "x';--", "--force"), 2, "is invalid"),
    (("consumers", "pause", "unknown"), 3, "registered: billing, mail"),
    (("consumers", "resume", "unknown"), 3, "no consumer 'unknown'"),
    (("consumers", "retire", "unknown", "--yes"), 3, "no consumer 'unknown'"),
    (("consumers", "retire", "billing", "--pattern", "x.*", "--yes"), 3, "subscription"),
    (("consumers", "retire", "billing"), 4, "pass --yes"),
    (("schedules", "run", "never"), 3, "known: nightly"),
    (("schedules", "pause", "never"), 3, "no schedule 'never'"),
    (("schedules", "resume", "never"), 3, "no schedule 'never'"),
    (("stats", "--fail-if", "nonsense>1"), 2, "condition 'nonsense>1' cannot be read"),
    (("stats", "--fail-if", "failed>many"), 2, "needs a whole number"),
    (("stats", "--fail-if", "failed=>1"), 2, "has the comparison =>; write one of > >= < <= =, such as failed>=10"),
    (("stats", "--fail-if", "failed==1"), 2, "such as failed=10"),
    (("stats", "--fail-if", "oldest>5"), 2, "has no unit"),
    (("stats", "--every", "soon", "--watch"), 2, "cannot be read"),
    (("audit", "list", "--target", "nonsense"), 2, "KIND:NAME"),
    (("audit", "list", "--limit", "0"), 2, "--limit"),
    (("audit", "list", "--before", "0"), 2, "--before"),
    (("prune",), 2, "missing option '--older-than'"),
    (("prune", "--older-than", "30"), 2, "has no unit"),
    (("prune", "--older-than", "-1d"), 2, "--older-than"),
    (("prune", "--older-than", "30d"), 4, "pass --yes"),
    (("schema", "migrate", "--lock-timeout", "x"), 2, "cannot be read"),
    (("worker", "--app", "nowhere:hf"), 6, "No module named 'nowhere'"),
    (("worker", "--app", "nocolon"), 6, "module:attribute"),
    (("worker", "--app", "absent.py:hf"), 6, "there is no such file"),
    (("worker", "--app", "json:dumps"), 6, "not Holdfast"),
    (("worker", "--app", "nowhere:hf", "--queues", "a:10,,b"), 2, "--queues"),
    (("worker", "--app", "nowhere:hf", "--queues", "a b"), 2, "queue name 'a b' is invalid"),
    (("worker", "--app", "nowhere:hf", "--queues", "mail:many"), 2, "'many' is not a number of slots; write mail:50"),
    (("worker", "--app", "nowhere:hf", "--queues", "mail:"), 2, "not a number of slots"),
    (("worker", "--app", "nowhere:hf", "--queues", "a:0"), 2, "slots"),
    (("worker", "--app", "nowhere:hf", "--lease", "0s"), 2, "lease"),
    (("worker", "--app", "nowhere:hf", "--lease", "x"), 2, "--lease"),
    (("worker", "--app", "nowhere:hf", "--processes", "0"), 2, "--processes"),
    (("worker", "--app", "nowhere:hf", "--concurrency", "0"), 2, "--concurrency"),
    (("worker", "--app", "nowhere:hf", "--generation", "x"), 2, "--generation"),
    (("nonsense",), 2, "no such command 'nonsense'"),
    (("--nonsense", "stats"), 2, "no such option '--nonsense'"),
    (("--format", "xml", "stats"), 2, "'xml' is not one of"),
    (("stats", "--format", "xml"), 2, "'xml' is not one of"),
    (("--log-level", "loud", "stats"), 2, "'loud' is not one of"),
    (("--dsn", "mysql://shop:s3cr3t@h/db", "stats"), 2, "does not name a store that Holdfast supports"),
    (("--dsn", "sqlite://shop:s3cr3t@h/db", "stats"), 2, "does not name a file"),
    (("--dsn", "postgres//h/db", "stats"), 2, "a colon or a slash is missing"),
    (("--dsn", "sqlite:/shop.db", "stats"), 2, "use sqlite:///relative.db, or sqlite:////absolute/path.db"),
    (("--dsn", "sqlite:///:memory:", "stats"), 2, "in-memory"),
    (("--dsn", "postgresql://shop:s3cr3t%zz@h/db", "stats"), 2, "the DSN cannot be parsed"),
    (("--dsn", "postgresql://shop:s3@cr3t@h/db", "stats"), 2, "the DSN cannot be parsed"),
    (("--dsn", "postgresql://h/db?password=s3cr3t&nonsense=1", "stats"), 2, "the DSN cannot be parsed"),
    (("--schema", 'x"; drop schema public', "stats"), 2, "schema name"),
    (("--schema", "other", "stats"), 5, "schema 'other' has no Holdfast tables"),
    (("--actor", "  ", "queues", "pause", "mail"), 2, "--actor must not be empty"),
]


@pytest.mark.parametrize(("args", "code", "text"), CASES, ids=[" ".join(args)[:70] for args, _, _ in CASES])
def test_bad_input_gets_one_clear_line_and_its_code(shop: Shop, args: tuple[str, ...], code: int, text: str) -> None:
    result = shop.run(*args)
    assert result.exit_code == code, result.output
    line = result.stderr.splitlines()[-1]
    assert line.startswith("error: "), result.stderr
    assert text in line
    assert "s3" not in line.replace("sqlite3", "")
    assert result.stdout == ""


def test_the_id_of_a_message_is_not_that_of_a_delivery(shop: Shop) -> None:
    message = json.loads(shop.run("dlq", "list", "--format", "json").stdout)[0]["message_id"]
    refused = shop.run("replay", "--id", message)
    assert (refused.exit_code, f"it is a message: see `holdfast messages show {message}`" in refused.stderr) == (
        3,
        True,
    )


def test_bad_input_changes_nothing(shop: Shop) -> None:
    before = shop.run("audit", "list", "--format", "json").stdout
    for args, _, _ in CASES:
        shop.run(*args)
    assert shop.run("audit", "list", "--format", "json").stdout == before


def test_json_on_stdin_that_is_none_is_refused(shop: Shop) -> None:
    result = shop.run("publish", "order.placed", "-", input="nonsense")
    assert (result.exit_code, "stdin is not JSON" in result.stderr) == (2, True)


def test_a_file_that_is_no_database_is_refused(shop: Shop) -> None:
    (shop.folder / "text.db").write_text("this is not a database\n" * 100)
    result = shop.run("--dsn", f"sqlite:///{shop.folder / 'text.db'}", "stats")
    assert (result.exit_code, "not a database" in result.stderr) == (5, True)


def test_tables_of_a_later_release_ask_for_an_upgrade(shop: Shop) -> None:
    store = open_store(shop.dsn)
    store.migrate()
    store.close_sync()
    with sqlite3.connect(shop.folder / "shop.db") as db:
        db.execute("insert into holdfast_schema_version (version, name) values (99, 'later')")
    for command in (("stats",), ("schema", "migrate")):
        result = shop.run(*command)
        assert (result.exit_code, "upgrade holdfast" in result.stderr) == (5, True), (command, result.stderr)
    assert shop.run("schema", "status").exit_code == 1


def test_an_empty_postgres_database_is_distinguished_from_an_unreachable_one(
    shop: Shop, postgres18: PostgresServer
) -> None:
    dsn = postgres18.create_database("cli_empty")
    for name in ("stats", "dlq list", "replay"):
        result = shop.run("--dsn", dsn, *words(name))
        assert (result.exit_code, "holdfast schema migrate" in result.stderr) == (5, True), result.stderr
    assert shop.run("--dsn", dsn, "schema", "status").exit_code == 1
    assert shop.run("--dsn", dsn, "doctor").exit_code == 1
    postgres18.drop_database("cli_empty")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("raise RuntimeError('no settings')", "RuntimeError: no settings"),
        ("import sys; sys.exit(3)", "sys.exit(3)"),
        ("hf = 7", "its attribute hf is of type int"),
        ("def broken(:", "SyntaxError"),
    ],
)
def test_an_app_that_cannot_be_imported_says_why(shop: Shop, source: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / f"broken_{abs(hash(source))}.py"
    path.write_text(source)
    for args in (("worker", "--app", f"{path}:hf"), ("--app", f"{path}:hf", "stats")):
        result = shop.run(*args, env={"HOLDFAST_DSN": None})
        assert (result.exit_code, text in result.stderr) == (6, True), result.stderr


def test_a_django_project_without_its_settings_names_the_variable(shop: Shop) -> None:
    result = shop.spawn("--app", "holdfast.django:hf", "stats", DJANGO_SETTINGS_MODULE="")
    assert (result.returncode, "this is a bug" in result.stderr) == (6, False)
    assert "set DJANGO_SETTINGS_MODULE to the settings of the project, or run `manage.py holdfast`" in result.stderr


def test_a_broken_pyproject_is_named(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shop.folder)
    Path("pyproject.toml").write_text("not = [toml")
    result = shop.run("worker")
    assert (result.exit_code, "pyproject.toml cannot be read" in result.stderr) == (2, True)


def test_a_pyproject_of_another_user_runs_no_code(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, ran = tmp_path / "pyproject.toml", tmp_path / "ran"
    file.write_text('[tool.holdfast]\napp = "evil.py:hf"\n')
    evil = f"import pathlib; pathlib.Path({str(ran)!r}).touch(); raise RuntimeError\n"
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    (inside / "evil.py").write_text(evil)
    monkeypatch.chdir(inside)
    monkeypatch.setattr("sys.path", [*sys.path])
    assert shop.run("stats", env={"HOLDFAST_DSN": None}).exit_code == 6
    assert ran.exists(), "a file of one's own names the app"
    ran.unlink()
    if os.getuid() == 0:
        os.chown(file, 65534, 65534)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 65534)
    refused = shop.run("stats", env={"HOLDFAST_DSN": None})
    assert refused.exit_code == 2
    assert "another user" in refused.stderr
    assert "--app" in refused.stderr
    assert not ran.exists()
    assert shop.run("stats").exit_code == 0, "an app that is not needed is not looked for"
    if os.getuid() == 0:
        os.chown(tmp_path, 65534, 65534)
        monkeypatch.chdir(tmp_path)
        (tmp_path / "evil.py").write_text(evil)
        assert shop.run("stats", env={"HOLDFAST_DSN": None}).exit_code == 6
        assert ran.exists(), "its owner's working directory may name it"


def test_a_misspelled_command_is_refused_with_the_nearest_one(shop: Shop) -> None:
    assert (
        shop.run("wroker").stderr == "error: no such command 'wroker'. Did you mean 'worker'? See `holdfast --help`\n"
    )
    assert shop.run("xyzzy").stderr == "error: no such command 'xyzzy'; see `holdfast --help`\n"


def test_an_unknown_job_is_refused_with_the_nearest_one_or_with_the_option_that_stores_it(shop: Shop) -> None:
    refused = shop.run("schedules", "put", "mail:7", "mial", "--every", "1h")
    assert "did you mean mail? start a worker that declares it first" in refused.stderr
    refused = shop.run("enqueue", "nope", "{}")
    assert "use force (--force on the command line) to store it for a later worker" in refused.stderr
    assert shop.run("enqueue", "nope", "{}", "--force").exit_code == 0


def test_a_filter_by_a_consumer_that_does_not_exist_says_so(shop: Shop) -> None:
    text = "error: no consumer 'biling' in this store; did you mean 'billing'? registered: billing, mail, nightly, receipts"
    for command in (
        ("replay", "--yes", "--reason", "x"),
        ("replay", "--dry-run"),
        ("dlq", "list"),
        ("dlq", "groups"),
        ("dlq", "export"),
        ("dlq", "discard", "--yes"),
        ("deliveries", "list"),
        ("tail", "--once", "--since", "1d"),
        ("queues", "pending", "mail"),
    ):
        refused = shop.run(*command, "--consumer", "biling")
        assert (refused.exit_code, refused.stderr.strip(), refused.stdout) == (3, text, ""), command
    assert json.loads(shop.run("plans", "list", "--format", "json").stdout) == []


UNKNOWN_NAMES: list[tuple[tuple[str, ...], str]] = [
    (
        ("dlq", "list", "--queue", "mial"),
        "no queue 'mial' in this store; did you mean 'mail'? known: default, mail, payments",
    ),
    (("dlq", "list", "--group", "zzz"), "no failure group 'zzz'"),
    (("dlq", "list", "--error-type", "RuntimeEror"), "no error class 'RuntimeEror' in this store; did you mean"),
    (("dlq", "list", "--type", "ordr.*"), "no type 'ordr.*' in this store; did you mean 'order.*'? subscribed: "),
    (("deliveries", "list", "--queue", "nope"), "no queue 'nope'"),
    (("deliveries", "list", "--event-id", ABSENT), f"no message '{ABSENT}'"),
    (
        ("messages", "list", "--type", "order.placd"),
        "no type 'order.placd' in this store; did you mean 'order.placed'?",
    ),
    (("jobs", "list", "--name", "mial"), "no consumer 'mial' in this store; did you mean 'mail'?"),
    (("jobs", "list", "--queue", "nope"), "no queue 'nope'"),
    (("queues", "pending", "nope"), "no queue 'nope' in this store; known: default, mail, payments"),
    (("tail", "--once", "--queue", "nope"), "no queue 'nope'"),
    (("replay", "--queue", "mial", "--yes"), "no queue 'mial'"),
    (("replay", "--type", "ordr.*", "--yes"), "no type 'ordr.*'"),
    (("replay", "--error-type", "KeyErr", "--yes"), "no error class 'KeyErr'"),
    (("audit", "list", "--action", "discrad"), "no action 'discrad' in this store; did you mean 'discard'?"),
    (("audit", "list", "--target", "queue:nope"), "no queue 'nope'"),
    (("audit", "list", "--target", "circuit:smtp"), "no kind of target 'circuit'"),
    (("audit", "list", "--target", "breaker:smtp"), "no circuit 'smtp'"),
    (("audit", "list", "--target", ABSENT), "no delivery"),
]


@pytest.mark.parametrize(("command", "text"), UNKNOWN_NAMES, ids=[" ".join(command) for command, _ in UNKNOWN_NAMES])
def test_a_name_that_exists_nowhere_is_not_an_empty_list(shop: Shop, command: tuple[str, ...], text: str) -> None:
    refused = shop.run(*command)
    assert (refused.exit_code, refused.stdout) == (3, ""), refused.stderr
    assert refused.stderr.startswith(f"error: {text}")


@pytest.mark.parametrize(
    "command",
    [
        ("dlq", "list", "--consumer", "nightly"),
        ("dlq", "list", "--queue", "mail"),
        ("dlq", "list", "--type", "order.*", "--consumer", "mail"),
        ("dlq", "list", "--type", "job.nightly"),
        ("dlq", "list", "--error-type", "RuntimeError", "--consumer", "mail"),
        ("dlq", "groups", "--consumer", "nightly"),
        ("deliveries", "list", "--consumer", "nightly"),
        ("messages", "list", "--type", "order.placed", "--since", "1s", "--until", "0s"),
        ("audit", "list", "--action", "trip"),
        ("audit", "list", "--target", "queue:mail"),
        ("queues", "pending", "payments"),
        ("replay", "--consumer", "nightly", "--dry-run"),
    ],
    ids=" ".join,
)
def test_names_that_exist_may_match_nothing(shop: Shop, command: tuple[str, ...]) -> None:
    assert shop.run(*command).exit_code == 0


def test_a_consumer_that_never_registered_exists_with_its_deliveries(shop: Shop) -> None:
    shop.heap(1)
    assert shop.run("dlq", "list", "--consumer", "heap", "--queue", "payments").exit_code == 0


def test_the_limit_of_a_queue_without_one_names_the_declaration(shop: Shop) -> None:
    refused = shop.run("queues", "limit", "mail", "--limit", "4").stderr
    assert (
        "no queue with a limit 'mail' in this store; declare it with Queue('mail', limit=Limit(20)) in the app"
        in refused
    )


def test_a_database_file_that_does_not_exist_is_named_with_its_folder(tmp_path: Path, shop: Shop) -> None:
    refused = shop.run("stats", "--dsn", f"sqlite:///{tmp_path / 'shopp.db'}").stderr
    assert f"({tmp_path / 'shopp.db'} does not exist; if the path is right, create the file with" in refused
