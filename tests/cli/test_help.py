"""The first commands that people type: help as help, the version, and an app that lives in a Django project."""

import shlex
from pathlib import Path

import click
import pytest

from holdfast._version import __version__
from holdfast.interfaces.cli import main
from holdfast.interfaces.cli.examples import EXAMPLES, examples_of
from holdfast.interfaces.cli.settings import ExampledCommand
from tests.cli.conftest import Shop
from tests.support.command_reference import commands

NOUNS = ["dlq", "deliveries", "queues", "webhooks", "schema"]


@pytest.mark.parametrize("args", [(), *((noun,) for noun in NOUNS)], ids=["holdfast", *NOUNS])
def test_a_command_without_arguments_prints_its_help(shop: Shop, args: tuple[str, ...]) -> None:
    result = shop.run(*args)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == shop.run(*args, "--help").stdout


def test_each_command_has_an_example_that_it_accepts() -> None:
    commands_by_path = {path.removeprefix("holdfast").strip(): command for path, command in commands()}
    for path, command in commands_by_path.items():
        if isinstance(command, click.Group):
            continue
        lines = examples_of(path)
        assert lines or f"holdfast {path}" in (command.help or ""), f"{path}: add an example to examples.py"
        assert not lines or isinstance(command, ExampledCommand), f"{path}: declare it with settings.command"
        for line in lines:
            command.make_context(path, shlex.split(line)[1 + len(path.split()) :], parent=click.Context(main))
    known = {line for path in commands_by_path for line in examples_of(path)}
    assert known == {f"holdfast {line}" for line in EXAMPLES}


def test_the_help_ends_with_the_examples(shop: Shop) -> None:
    assert shop.run("tokens", "create", "--help").stdout.endswith(
        "Examples:\n  holdfast tokens create --name grace --scope operate\n"
    )


def test_the_version_is_an_option_too(shop: Shop) -> None:
    result = shop.run("--version")
    assert (result.exit_code, result.stdout) == (0, f"holdfast {__version__}\n")


DJANGO_APP = """
from django.contrib.auth.models import User
from holdfast import Holdfast

hf = Holdfast()

@hf.job()
def greet(name: str) -> None:
    print("hello", User(username=name).get_username())
"""


@pytest.mark.parametrize("spec", ["jobs:hf", "jobs.py:hf"])
def test_a_worker_sets_django_up_before_it_imports_the_app(tmp_path: Path, spec: str) -> None:
    shop = Shop(f"sqlite:///{tmp_path / 'jobs.db'}", tmp_path)
    (tmp_path / "site_settings.py").write_text(
        "INSTALLED_APPS = ['django.contrib.auth', 'django.contrib.contenttypes']\nUSE_TZ = True\n"
    )
    (tmp_path / "jobs.py").write_text(DJANGO_APP)
    assert shop.spawn("schema", "migrate").returncode == 0
    assert shop.spawn("enqueue", "greet", '{"name": "ada"}', "--force").returncode == 0
    worker = shop.spawn("worker", "--app", spec, "--until-idle", DJANGO_SETTINGS_MODULE="site_settings")
    assert (worker.returncode, worker.stdout) == (0, "hello ada\n"), worker.stderr
