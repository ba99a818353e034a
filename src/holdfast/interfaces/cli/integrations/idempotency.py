"""`holdfast idempotency`: idempotency keys and their stored responses."""

import click

from holdfast.interfaces.cli.actions import add_actions
from holdfast.interfaces.cli.filters import PAGE
from holdfast.interfaces.cli.output import console, show_json, show_list, status_style
from holdfast.interfaces.cli.settings import command, group, settings
from holdfast.interfaces.cli.table import Column, time_column
from holdfast.interfaces.presentation.actions import KEYS
from holdfast.interfaces.presentation.formatting import moment, printable
from holdfast.ops.resources.idempotency import KeyDetail
from holdfast.stores.integrations.idempotency import KeyRecord, KeyStatus

_SHOWN = 2000


@group("idempotency")
def cli() -> None:
    """List, show and release idempotency keys. Keys stored in Redis are not included."""


@command(cli, name="list")
@click.option("--scope", metavar="SCOPE", help="Only this scope (tenant or user).")
@click.option("--status", type=click.Choice([one.value for one in KeyStatus]), help="Only this state.")
@click.option("--limit", type=PAGE, default=50, show_default=True, help="Maximum number of keys.")
def list_(scope: str | None, status: str | None, limit: int) -> None:
    """List keys, newest first."""
    ops = settings().operations()
    found = ops.idempotency_keys(scope=scope, status=KeyStatus(status) if status else None, limit=limit)
    now = ops.now()
    columns: list[Column[KeyRecord]] = [
        Column("SCOPE", lambda one: printable(one.scope)),
        Column("KEY", lambda one: one.key),
        Column("STATUS", _state, style=lambda one: status_style(_state(one))),
        Column("REQUEST", lambda one: f"{one.method} {one.path}", loose=True),
        Column("RESPONSE", lambda one: one.response_status or "", right=True),
        time_column("RESERVED", lambda one: one.reserved_at, now),
        time_column("EXPIRES", lambda one: one.expires_at, now),
    ]
    show_list(settings(), found, columns, "no matching idempotency keys")


@command(cli, name="show")
@click.argument("scope")
@click.argument("key")
def show(scope: str, key: str) -> None:
    """Show one key and its stored response."""
    ops = settings().operations()
    detail, now = ops.idempotency_key(scope, key), ops.now()
    if not settings().tabular:
        show_json(settings(), detail)
        return
    one = detail.record
    facts = {
        "scope": one.scope,
        "key": one.key,
        "status": _state(one),
        "request": f"{one.method} {one.path}",
        "hash": one.request_hash,
        "reserved": moment(one.reserved_at, now),
        "lease": "" if one.status is not KeyStatus.STARTED else moment(one.lease_until, now),
        "completed": moment(one.completed_at, now),
        "expires": moment(one.expires_at, now),
    }
    for name, value in facts.items():
        if value:
            console().print(f"{name:<10}{printable(value)}", soft_wrap=True)
    _print_response(detail)


def _print_response(detail: KeyDetail) -> None:
    one = detail.record
    if one.response_status is None:
        return
    size = "body not stored (too large)" if one.response_bytes is None else f"{one.response_bytes:,} bytes"
    console().print(f"\n{one.response_status}, {size}")
    for name, value in detail.headers:
        console().print(printable(f"{name}: {value}"), soft_wrap=True)
    if detail.body:
        more = "…" if len(detail.body) > _SHOWN else ""
        console().print(f"\n{printable(detail.body[:_SHOWN])}{more}", soft_wrap=True)


def _state(one: KeyRecord) -> str:
    return "lapsed" if one.lapsed else one.status.value


add_actions(cli, KEYS)
