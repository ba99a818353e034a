"""`manage.py holdfast …`: the `holdfast` command with the app of this project."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.apps import apps
from django.core.management.base import BaseCommand, CommandError

from holdfast.core.errors import HoldfastError
from holdfast.django.configuration import read_configuration
from holdfast.interfaces.cli import main
from holdfast.interfaces.cli.exit_codes import ExitCode
from holdfast.interfaces.cli.settings import Program, Settings

_APP = "holdfast.django:hf"


class Command(BaseCommand):
    """Passes its arguments on: `manage.py holdfast worker`, `manage.py holdfast dlq list`."""

    help = "Run workers, inspect deliveries and replay dead letters of this project's Holdfast app."
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Leaves the arguments, also --help and --version, to the `holdfast` command."""
        django = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        django.add_argument("--settings")
        django.add_argument("--pythonpath")
        # `manage.py` has applied both.
        _, rest = django.parse_known_args(argv[2:])
        _run(rest, f"{Path(argv[0]).name} {argv[1]}")

    def print_help(self, prog_name: str, subcommand: str) -> None:
        """`manage.py help holdfast` shows the commands of Holdfast."""
        _run(["--help"], f"{Path(prog_name).name} {subcommand}")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("arguments", nargs=argparse.REMAINDER)

    def handle(self, *args: Any, arguments: Sequence[str] = (), **_: Any) -> None:
        """`call_command("holdfast", "stats")`; raises `CommandError` if the command fails."""
        try:
            _run([*args, *arguments], "manage.py holdfast")
        except SystemExit as ended:
            if ended.code:
                raise CommandError(
                    f"holdfast {' '.join(arguments)} failed with exit code {ended.code}", returncode=int(ended.code)
                ) from None


def _run(arguments: Sequence[str], program: str) -> None:
    problem = apps.get_app_config("holdfast").problem
    if problem is not None:
        # The handlers are not imported: a worker would leave their deliveries pending.
        sys.stderr.write(f"error: {problem}\n")
        sys.exit(ExitCode.USAGE)
    main(list(arguments), prog_name=program, obj=Settings(app=_APP, program=_program()))


def _program() -> Program:
    """How this project writes its commands, such as `python manage.py holdfast`."""
    started = Path(sys.argv[0])
    if started.suffix != ".py":
        command = started.name if started.name.startswith("django-admin") else "python manage.py"
    else:
        command = "python -m django" if started.name == "__main__.py" else f"python {started.name}"
    try:
        is_migrated_here = read_configuration().migrate
    except HoldfastError:  # the command reports it when it loads the app
        is_migrated_here = False
    migration = {"holdfast schema migrate": f"{command} migrate"} if is_migrated_here else {}
    return Program(f"{command} holdfast", _APP, migration)
