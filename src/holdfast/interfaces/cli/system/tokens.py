"""`holdfast tokens`: access tokens of the HTTP API and the console."""

from datetime import datetime

import click

from holdfast.interfaces.cli.actions import add_actions
from holdfast.interfaces.cli.handlers.resources import add_list
from holdfast.interfaces.cli.output import note, show_value
from holdfast.interfaces.cli.settings import command, group, settings
from holdfast.interfaces.cli.table import Column, time_column
from holdfast.interfaces.presentation.actions import TOKENS
from holdfast.ops.resources.tokens import CreatedToken
from holdfast.stores.admin.token import Scope, Token


@group("tokens")
def cli() -> None:
    """Create, list and revoke access tokens. They give access to the HTTP API and the console."""


@command(cli, name="create", acts=True)
@click.option("--name", required=True, help="Name of the token holder, recorded in the audit log.")
@click.option(
    "--scope",
    type=click.Choice([one.value for one in Scope]),
    default="read",
    show_default=True,
    help="What the token may do.",
)
@click.option("--expires", help="Lifetime, such as 90d.  [default: never expires]")
def create(name: str, scope: str, expires: str | None) -> None:
    """Create a token and print its secret. The secret is shown only once."""
    made = settings().operations().create_token(name, scope=scope, expires=expires, actor=settings().who())
    show_value(settings(), made, _print_secret)


def _print_secret(made: CreatedToken) -> None:
    created = f"created token {made.token.id} for {made.token.name}, scope {made.token.scope}"
    click.echo(made.secret)
    note(f"{created}; save the secret above, it is not shown again")


@add_list(cli, lambda ops: ops.tokens(), "no tokens; create one with `holdfast tokens create --name ci --scope read`")
def _columns(now: datetime) -> list[Column[Token]]:
    """List tokens, including revoked ones. Secrets are not stored and cannot be shown."""
    return [
        Column("ID", lambda one: one.id),
        Column("NAME", lambda one: one.name),
        Column("SCOPE", lambda one: one.scope.value),
        Column("PREFIX", lambda one: f"{one.prefix}…"),
        Column("STATE", _state, style=lambda one: "green" if one.valid else "red"),
        time_column("LAST USED", lambda one: one.last_used_at, now, never="never"),
        time_column("EXPIRES", lambda one: one.expires_at, now),
        Column("CREATED BY", lambda one: one.created_by),
    ]


def _state(one: Token) -> str:
    if one.revoked_at is not None:
        return "revoked"
    return "valid" if one.valid else "expired"


add_actions(cli, TOKENS)
