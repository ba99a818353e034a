"""Commands that the CLI prints as next steps can be copied: they lead to the same store."""

import re
import shlex
from functools import partial
from pathlib import Path

import pytest

from holdfast.core.telemetry.log_line import one_line
from holdfast.interfaces.cli.next_command import next_command, with_store
from holdfast.interfaces.cli.settings import Program, Settings
from tests.cli.conftest import Shop

FROM_OPTION: dict[str, str | None] = {"HOLDFAST_DSN": None}


@pytest.mark.parametrize("command", ["dlq groups", "dlq show", "doctor"])
def test_printed_commands_repeat_the_dsn_of_an_option_and_run_as_printed(shop: Shop, command: str) -> None:
    args = [*command.split(), *([shop.dead[0]] if command == "dlq show" else [])]
    shown = shop.run(*args, "--dsn", shop.dsn, env=FROM_OPTION)
    text = " ".join((shown.stdout + shown.stderr).split())
    assert f"--dsn {shop.dsn}" in text
    (printed, *_) = re.findall(rf"holdfast (dlq [a-z ]+[^`]*? --dsn {shop.dsn})", text)
    assert shop.run(*shlex.split(printed), "--yes", env=FROM_OPTION).exit_code == 0


@pytest.mark.parametrize("command", ["dlq groups", "dlq show", "doctor"])
def test_printed_commands_have_no_options_when_the_store_came_from_the_environment(shop: Shop, command: str) -> None:
    shown = shop.run(*command.split(), *([shop.dead[0]] if command == "dlq show" else []))
    assert "--dsn" not in shown.stdout + shown.stderr


def test_an_error_repeats_the_options_too(shop: Shop) -> None:
    id = shop.dead[0]
    refused = shop.run("messages", "show", id, "--dsn", shop.dsn, env=FROM_OPTION)
    assert f"see `holdfast deliveries show {id} --dsn {shop.dsn}`" in refused.stderr


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        (Settings(), ""),
        (Settings(dsn="sqlite:////srv/my shop.db"), " --dsn 'sqlite:////srv/my shop.db'"),
        (
            Settings(dsn="postgresql://h/db", schema="other", app="shop:hf"),
            " --dsn postgresql://h/db --schema other --app shop:hf",
        ),
        (Settings(dsn="postgresql://shop:s3cr3t@h/db"), " --dsn …"),
        (Settings(dsn="postgresql://h/db?password=s3cr3t"), " --dsn …"),
        (Settings(dsn="postgresql://shop:s3@cr3t@[/db"), " --dsn …"),
    ],
)
def test_a_password_is_never_repeated(settings: Settings, options: str) -> None:
    assert next_command("holdfast stats", settings) == f"holdfast stats{options}"
    assert with_store("run `holdfast stats`, then wait", settings) == f"run `holdfast stats{options}`, then wait"
    assert with_store("next: holdfast stats", settings) == f"next: holdfast stats{options}"


def test_a_command_without_a_store_and_a_given_option_stay(tmp_path: Path) -> None:
    settings = Settings(dsn=f"sqlite:///{tmp_path}/shop.db", app="shop:hf")
    for line in ("holdfast worker --app module:attribute", "holdfast dlq --help", "holdfast version"):
        assert next_command(line, settings) == line
    assert next_command("holdfast doctor --app other:hf", settings).count("--app") == 1


def test_a_part_of_an_id_leads_to_the_search_that_completes_it(shop: Shop) -> None:
    id = str(shop.dead[0])
    refused = shop.run("deliveries", "show", id[:13])
    assert f"`holdfast search {id[:13]}` lists the ids that begin with it" in refused.stderr
    assert id in shop.run("search", id[:13]).stdout
    assert "holdfast search" not in shop.run("deliveries", "show", "nonsense").stderr


def test_another_program_prints_its_own_commands() -> None:
    program = Program(
        "python manage.py holdfast", "holdfast.django:hf", {"holdfast schema migrate": "python manage.py migrate"}
    )
    settings = Settings(app="holdfast.django:hf", program=program)
    for text, printed in (
        ("replay: holdfast replay --dry-run", "replay: python manage.py holdfast replay --dry-run"),
        ("run `holdfast schema migrate`", "run `python manage.py migrate`"),
        (
            "run `holdfast schema migrate`, then `holdfast stats`",
            "run `python manage.py migrate`, then `python manage.py holdfast stats`",
        ),
        ("start `holdfast worker --app module:attribute`", "start `python manage.py holdfast worker`"),
        ("start `holdfast worker --app module:attr`", "start `python manage.py holdfast worker`"),
        ("upgrade holdfast here", "upgrade holdfast here"),
    ):
        assert with_store(text, settings) == printed
    settings = Settings(app="other:hf", schema="ops", program=program)
    assert next_command("holdfast stats", settings) == "python manage.py holdfast stats --schema ops --app other:hf"


def test_a_log_line_prints_the_command_of_its_program() -> None:
    settings = Settings(app="holdfast.django:hf", program=Program("python manage.py holdfast", "holdfast.django:hf"))
    line = one_line("dead letter", {"consumer": "bill", "dlq_id": "7"}, partial(next_command, settings=settings))
    assert line == "dead letter: bill; python manage.py holdfast dlq show 7"
