"""`holdfast search`: finds a text in failure groups and deliveries."""

import shlex

import click

from holdfast.interfaces.cli.deliveries.columns import when
from holdfast.interfaces.cli.filters import PAGE
from holdfast.interfaces.cli.output import note, print_table, show_json, status_style
from holdfast.interfaces.cli.settings import command, settings
from holdfast.interfaces.cli.table import Column
from holdfast.interfaces.presentation.deliveries import search_scope, state
from holdfast.interfaces.presentation.formatting import one_line
from holdfast.ops.queries.name_search import NamedItem
from holdfast.ops.queries.search import Match
from holdfast.stores.queries.query import FailureGroup


@command(name="search")
@click.argument("text")
@click.option("--limit", type=PAGE, default=20, show_default=True, help="Maximum number of deliveries.")
@click.option("--after", metavar="CURSOR", help="Continue a search from the cursor that it printed.")
def cli(text: str, limit: int, after: str | None) -> None:
    """Search names, failure groups and deliveries. Finds part of an id, error, key, tenant, type, consumer or payload.

    Names are those of consumers, queues, schedules, webhook endpoints and circuits, and the keys of workflow runs.

    \b
      holdfast search "connection refused"
      holdfast search order:4711
      holdfast search 3a160ca18709
    """
    ops = settings().operations()
    found = ops.search(text, limit=limit, after=after)
    if not settings().tabular:
        show_json(settings(), found)
        return
    now = ops.now()
    if found.items:
        items: list[Column[NamedItem]] = [
            Column("KIND", lambda one: one.kind.replace("_", " ")),
            Column("NAME", lambda one: one.name),
            Column("DETAILS", lambda one: one_line(one.text), loose=True),
        ]
        print_table(found.items, items)
        click.echo()
    if found.groups:
        groups: list[Column[FailureGroup]] = [
            Column("GROUP", lambda one: one.fingerprint or ""),
            Column("COUNT", lambda one: f"{one.count:,}", right=True),
            Column("CONSUMER", lambda one: one.consumer),
            Column("ERROR", lambda one: one_line(f"{one.error_type}: {one.last_error}"), loose=True),
        ]
        print_table(found.groups, groups)
        click.echo()
    if found.matches:
        matches: list[Column[Match]] = [
            Column("ID", lambda one: one.delivery.delivery.id),
            Column("STATUS", lambda one: state(one.delivery), style=lambda one: status_style(state(one.delivery))),
            Column("CONSUMER", lambda one: one.delivery.delivery.consumer),
            Column("TYPE", lambda one: one.delivery.type),
            Column("WHEN", lambda one: when(one.delivery, now)),
            Column("FOUND IN", lambda one: one_line(one.field), loose=True),
        ]
        print_table(found.matches, matches)
    elif not found.groups and not found.items:
        note("nothing found")
    note(search_scope(found))
    if found.next is not None:
        note(f"continue: holdfast search {shlex.quote(text)} --after {found.next}")
