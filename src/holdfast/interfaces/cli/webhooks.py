"""`holdfast webhooks`: endpoints that events are posted to."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.interfaces.cli.arguments import read_headers
from holdfast.interfaces.cli.exit_codes import ExitCode
from holdfast.interfaces.cli.formatting import ago, one_line, printable
from holdfast.interfaces.cli.output import console, note, show_json, show_list
from holdfast.interfaces.cli.queues import REASON
from holdfast.interfaces.cli.settings import command, group, settings
from holdfast.interfaces.cli.table import Column
from holdfast.ops.webhooks import Webhook

if TYPE_CHECKING:
    from holdfast.outbound.webhooks.endpoint import Added
    from holdfast.outbound.webhooks.options import WebhookOptions

C = TypeVar("C", bound=Callable[..., Any])


@group("webhooks")
def cli() -> None:
    """Look at webhook endpoints, add, disable and test them, change their secret."""


def _reach(function: C) -> C:
    """The options that say where requests may go."""
    network = click.option(
        "--allow-network",
        "networks",
        multiple=True,
        metavar="NETWORK",
        help="A private network that may be called, such as 10.1.0.0/16.  [env: HOLDFAST_WEBHOOK_NETWORKS]",
    )
    http = click.option(
        "--allow-http", "http", is_flag=True, help="Also send unencrypted.  [env: HOLDFAST_WEBHOOK_HTTP=1]"
    )
    return network(http(function))


def _options(networks: tuple[str, ...], http: bool) -> "WebhookOptions":
    """What the app allows where it was named or names the store, else the environment; and what was given here."""
    from holdfast.outbound.webhooks.options import WebhookOptions

    found = settings().load_app().webhooks.options if settings().uses_app else WebhookOptions.from_environment()
    return replace(found, allow_networks=found.allow_networks + networks, allow_http=found.allow_http or http)


@command(cli, name="list")
@click.option("--tenant", metavar="NAME", help="Only this tenant's.")
def list_(tenant: str | None) -> None:
    """List endpoints. Secrets are never shown again."""
    ops = settings().operations()
    found, now = ops.webhooks(tenant=tenant, show_path=True), ops.now()
    columns: list[Column[Webhook]] = [
        Column("ID", lambda one: one.id),
        Column("TENANT", lambda one: one.tenant or ""),
        Column("URL", lambda one: one.url, loose=True),
        Column("EVENTS", lambda one: ", ".join(one.events), loose=True),
        Column(
            "STATE",
            lambda one: "enabled" if one.disabled_at is None else f"disabled {ago(one.disabled_at, now)}",
            longer=lambda one: _state(one),
            style=lambda one: "" if one.disabled_at is None else "yellow",
        ),
        Column("CIRCUIT", lambda one: one.circuit.value, style=lambda one: "red" if one.circuit != "closed" else ""),
        Column("PENDING", lambda one: f"{one.pending:,}", right=True),
        Column("FAILED", lambda one: f"{one.failed:,}", right=True, style=lambda one: "red" if one.failed else ""),
    ]
    show_list(settings(), found, columns, "no endpoint yet: `holdfast webhooks add URL --event order.*` makes one")


def _state(one: Webhook) -> str:
    return "enabled" if one.disabled_at is None else f"disabled: {one_line(one.disabled_reason)}"


@command(cli, name="add", acts=True)
@click.argument("url")
@click.option("--event", "events", multiple=True, required=True, metavar="TYPE", help="A type or pattern; repeatable.")
@click.option("--tenant", metavar="NAME", help="Whose events: those published with the header tenant=NAME.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header to send along; repeatable.")
@click.option("--rate", type=float, metavar="N", help="At most so many requests per second, by all workers together.")
@click.option(
    "--concurrency", type=int, default=10, metavar="N", show_default=True, help="Requests at once per worker."
)
@_reach
def add(
    url: str,
    events: tuple[str, ...],
    tenant: str | None,
    headers: tuple[str, ...],
    rate: float | None,
    concurrency: int,
    networks: tuple[str, ...],
    http: bool,
) -> None:
    """Post events to URL from now on. Prints the id and the secret, which is shown this once."""
    added = (
        settings()
        .operations()
        .add_webhook(
            url,
            events=events,
            actor=settings().who(),
            tenant=tenant,
            headers={name: str(value) for name, value in read_headers(headers).items()},
            rate=rate,
            concurrency=concurrency,
            options=_options(networks, http),
        )
    )
    _show(added)


@command(cli, name="test", acts=True)
@click.argument("id")
@_reach
def test(id: str, networks: tuple[str, ...], http: bool) -> ExitCode:
    """Post a signed event of type webhook.test from here and show the answer. Exit code 1 unless it was accepted."""
    tried = settings().operations().test_webhook(id, actor=settings().who(), options=_options(networks, http))
    if not settings().tabular:
        show_json(settings(), tried)
    elif tried.status is None:
        note(f"no answer: {tried.error}")
    else:
        word = "accepted" if tried.accepted else "refused"
        console().print(f"{word}: {tried.status} after {tried.latency.total_seconds() * 1000:.0f} ms")
        if tried.excerpt:
            console().print(printable(tried.excerpt))
    return ExitCode.DONE if tried.accepted else ExitCode.PARTIAL


@command(cli, name="disable", acts=True)
@click.argument("id")
@click.option("--reason", metavar="TEXT", required=True, help="Why, for the list and the audit.")
def disable(id: str, reason: str) -> None:
    """Make no more deliveries for an endpoint, and hold those there are."""
    disabled = settings().operations().disable_webhook(id, actor=settings().who(), reason=reason)
    if disabled:
        note(f"endpoint {id} is disabled; `holdfast webhooks enable {id}` lets it go on")
    else:
        note(f"endpoint {id} was disabled before")


@command(cli, name="enable", acts=True)
@click.argument("id")
@REASON
def enable(id: str, reason: str | None) -> None:
    """Go on with what was held, and with events from now on."""
    enabled = settings().operations().enable_webhook(id, actor=settings().who(), reason=reason)
    note(f"endpoint {id} goes on" if enabled else f"endpoint {id} was not disabled")


@command(cli, name="rotate-secret", acts=True)
@click.argument("id")
@click.option(
    "--overlap", default="1d", show_default=True, metavar="DURATION", help="How long the old one signs as well."
)
@REASON
def rotate_secret(id: str, overlap: str, reason: str | None) -> None:
    """Give an endpoint a new secret. Prints it, this once."""
    who = settings().who()
    _show(settings().operations().rotate_webhook_secret(id, actor=who, overlap=overlap, reason=reason))


def _show(added: "Added") -> None:
    if not settings().tabular:
        show_json(settings(), added)
        return
    console().print(f"id      {added.id}")
    console().print(f"secret  {added.secret}")
    note("the secret is not shown again; give it to whoever receives these webhooks")
