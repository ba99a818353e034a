"""`holdfast doctor`: runs the health checks and shows remedies."""

import textwrap
from typing import TYPE_CHECKING

import click

from holdfast.interfaces.cli.exit_codes import ExitCode
from holdfast.interfaces.cli.next_command import with_store
from holdfast.interfaces.cli.output import console, show_value, status_style
from holdfast.interfaces.cli.settings import command, settings
from holdfast.interfaces.presentation.formatting import many, printable
from holdfast.ops.doctor.checks import Finding, Level

if TYPE_CHECKING:
    from holdfast.ops.doctor.broker_checks import CheckedEndpoint

_LEAST = 30


@command(name="doctor")
@click.option("--strict", is_flag=True, help="Treat warnings as failures.")
def cli(strict: bool) -> ExitCode:
    """Check the health of the store and its workers. Changes nothing.

    With --app it also checks the app's brokers: whether they are reachable, and which of their settings can lose records.
    """
    found = settings().operations(check=False).doctor(places=_broker_endpoints())
    show_value(settings(), found, _print)
    bad = {Level.FAIL, Level.WARN} if strict else {Level.FAIL}
    return ExitCode.PARTIAL if any(finding.level in bad for finding in found) else ExitCode.DONE


def _broker_endpoints() -> "list[CheckedEndpoint]":
    if settings().app is None:
        return []
    from holdfast.app.declaration.broker_endpoints import broker_endpoints

    return broker_endpoints(settings().load_app())


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def _print(found: list[Finding]) -> None:
    from rich.text import Text

    out = console()
    width = max(len(finding.check) for finding in found)
    for finding in found:
        remedy = with_store(finding.remedy) if finding.remedy else ""
        line = Text()
        line.append(f"{finding.level.value:<4}  ", style=f"bold {status_style(finding.level.value)}")
        line.append(f"{finding.check:<{width}}  ", style="bold")
        room = max(_LEAST, out.width - width - 8)
        first, *rest = _wrapped(printable(finding.message), room)
        out.print(line.append(first), soft_wrap=True)
        for part in rest:
            out.print(f"{'':<{width + 8}}{part}", soft_wrap=True)
        for n, part in enumerate(_wrapped(printable(remedy), room - 2) if remedy else ()):
            out.print(Text(f"{'':<{width + 8}}{' ' if n else '→'} {part}", style="dim"), soft_wrap=True)
    failed = sum(finding.level is Level.FAIL for finding in found)
    warned = sum(finding.level is Level.WARN for finding in found)
    out.print()
    out.print(f"{many(len(found), 'check')}, {many(failed, 'failure')}, {many(warned, 'warning')}")
