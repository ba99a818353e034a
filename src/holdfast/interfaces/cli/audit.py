"""`holdfast audit`: who did what to which item, when and why."""

import re

import click

from holdfast.interfaces.cli.choose import PAGE
from holdfast.interfaces.cli.output import show_list
from holdfast.interfaces.cli.settings import command as make
from holdfast.interfaces.cli.settings import noun, settings
from holdfast.interfaces.cli.table import Column
from holdfast.interfaces.cli.words import ago, moment, one_line
from holdfast.stores.operate import AuditEntry

_ID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


@noun("audit")
def command() -> None:
    """Look at what operators did."""


@make(command, name="list")
@click.option("--target", metavar="KIND:NAME", help="Of this item: a delivery's id, queue:mail, plan:01a1…")
@click.option("--limit", type=PAGE, default=50, show_default=True, help="How many.")
@click.option("--before", type=click.IntRange(1), metavar="N", help="Older than this entry.")
def list_(target: str | None, limit: int, before: int | None) -> None:
    """List what was done, newest first."""
    ops = settings().operations()
    found, now = ops.audit(limit=limit, before=before, target=_target(target)), ops.now()
    columns: list[Column[AuditEntry]] = [
        Column("#", lambda one: one.id, right=True),
        Column("WHEN", lambda one: ago(one.at, now), longer=lambda one: moment(one.at, now)),
        Column("WHO", lambda one: one.actor),
        Column("DID", lambda one: one.action),
        Column("TO", lambda one: f"{one.kind} {one.target}"),
        Column("WHY", lambda one: one_line(one.reason), loose=True),
    ]
    show_list(settings(), found, columns, "nothing was done yet")


def _target(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    if _ID.fullmatch(text):
        return "delivery", text.lower()
    kind, colon, name = text.partition(":")
    if not colon or not kind or not name:
        raise click.UsageError(f"--target {text!r} is neither a delivery's id nor KIND:NAME, such as queue:mail")
    return kind, name
