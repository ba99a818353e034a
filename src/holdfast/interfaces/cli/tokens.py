"""`holdfast tokens`: what opens the HTTP API."""

import click

from holdfast.interfaces.cli.formatting import ago, moment
from holdfast.interfaces.cli.output import note, show_json, show_list
from holdfast.interfaces.cli.queues import REASON
from holdfast.interfaces.cli.settings import command, group, settings
from holdfast.interfaces.cli.table import Column
from holdfast.stores.token import Scope, Token


@group("tokens")
def cli() -> None:
    """Make, list and revoke the tokens of the HTTP API."""


@command(cli, name="create", acts=True)
@click.option("--name", required=True, help="Who will act with it: the audit says this name.")
@click.option(
    "--scope",
    type=click.Choice([one.value for one in Scope]),
    default="read",
    show_default=True,
    help="What it lets do.",
)
@click.option("--expires", help="When it ends, such as 90d. Left out: never.")
def create(name: str, scope: str, expires: str | None) -> None:
    """Make a token and show its secret, this once."""
    made = settings().operations().create_token(name, scope=scope, expires=expires, actor=settings().who())
    if settings().tabular:
        click.echo(made.secret)
        note(f"token {made.token.id} for {name}, scope {scope}; keep the line above, it cannot be shown again")
    else:
        show_json(settings(), made)


@command(cli, name="list")
def list_() -> None:
    """List the tokens, revoked ones too; their secrets are known to nobody."""
    ops = settings().operations()
    found, now = ops.tokens(), ops.now()
    columns: list[Column[Token]] = [
        Column("ID", lambda one: one.id),
        Column("NAME", lambda one: one.name),
        Column("SCOPE", lambda one: one.scope.value),
        Column("BEGINS", lambda one: f"{one.prefix}…"),
        Column("STATE", _state, style=lambda one: "green" if one.valid else "red"),
        Column(
            "USED",
            lambda one: "never" if one.last_used_at is None else ago(one.last_used_at, now),
            longer=lambda one: moment(one.last_used_at, now) or "never",
        ),
        Column(
            "EXPIRES",
            lambda one: "" if one.expires_at is None else ago(one.expires_at, now),
            longer=lambda one: moment(one.expires_at, now),
        ),
        Column("MADE BY", lambda one: one.created_by),
    ]
    show_list(settings(), found, columns, "no token yet; `holdfast tokens create --name ci --scope read` makes one")


@command(cli, name="revoke", acts=True)
@click.argument("token")
@REASON
def revoke(token: str, reason: str | None) -> None:
    """End a token at once, by its id or its name."""
    settings().operations().revoke_token(token, actor=settings().who(), reason=reason)
    note(f"token {token} opens nothing any more")


def _state(one: Token) -> str:
    if one.revoked_at is not None:
        return "revoked"
    return "valid" if one.valid else "expired"
