"""`holdfast webhooks`: manages webhook endpoints."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.interfaces.cli.actions import REASON, add_actions
from holdfast.interfaces.cli.deliveries.publish import read_headers
from holdfast.interfaces.cli.exit_codes import ExitCode
from holdfast.interfaces.cli.output import console, note, show_json, show_list
from holdfast.interfaces.cli.settings import command, group, settings
from holdfast.interfaces.cli.table import Column, count_column
from holdfast.interfaces.presentation.actions import WEBHOOKS
from holdfast.interfaces.presentation.formatting import ago, one_line, printable
from holdfast.ops.resources.webhooks import Webhook

if TYPE_CHECKING:
    from holdfast.outbound.webhooks.endpoint import Added
    from holdfast.outbound.webhooks.options import WebhookOptions

C = TypeVar("C", bound=Callable[..., Any])


@group("webhooks")
def cli() -> None:
    """List and manage webhook endpoints."""


def _destination_options(function: C) -> C:
    """Adds the options that allow request destinations."""
    network = click.option(
        "--allow-network",
        "networks",
        multiple=True,
        metavar="NETWORK",
        help="Allow this private network, such as 10.1.0.0/16. Repeatable.  [env: HOLDFAST_WEBHOOK_NETWORKS]",
    )
    http = click.option(
        "--allow-http", "http", is_flag=True, help="Allow http:// URLs.  [env: HOLDFAST_WEBHOOK_HTTP=1]"
    )
    return network(http(function))


def _options(networks: tuple[str, ...], http: bool) -> "WebhookOptions":
    """The webhook options of the app, or of the environment without an app, with those of the command line added."""
    from holdfast.outbound.webhooks.options import WebhookOptions

    found = settings().load_app().webhooks.options if settings().uses_app else WebhookOptions.from_environment()
    return replace(found, allow_networks=found.allow_networks + networks, allow_http=found.allow_http or http)


@command(cli, name="list")
@click.option("--tenant", metavar="NAME", help="Only this tenant.")
def list_(tenant: str | None) -> None:
    """List endpoints. Secrets are not shown."""
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
        count_column("PENDING", lambda one: one.pending),
        count_column("FAILED", lambda one: one.failed, "red"),
    ]
    show_list(settings(), found, columns, "no endpoints; add one with `holdfast webhooks add URL --event order.*`")


def _state(one: Webhook) -> str:
    return "enabled" if one.disabled_at is None else f"disabled: {one_line(one.disabled_reason)}"


@command(cli, name="add", acts=True)
@click.argument("url")
@click.option(
    "--event", "events", multiple=True, required=True, metavar="TYPE", help="Event type or pattern. Repeatable."
)
@click.option("--tenant", metavar="NAME", help="Only events published with the header tenant=NAME.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="Additional request header. Repeatable.")
@click.option(
    "--rate", metavar="RATE", help="Maximum requests in a window, over all workers: 90/10s. Default: no maximum."
)
@click.option(
    "--order",
    type=click.Choice(["block", "skip"]),
    help="Send events one at a time, in order. A dead letter stops the endpoint (block) or is left out (skip).",
)
@click.option(
    "--concurrency",
    type=int,
    default=10,
    metavar="N",
    show_default=True,
    help="Maximum concurrent requests per worker; with --rate, over all workers.",
)
@_destination_options
def add(url: str, headers: tuple[str, ...], networks: tuple[str, ...], http: bool, **chosen: Any) -> None:
    """Send events to URL from now on. Prints the id and the secret. The secret is shown only once."""
    given = {name: str(value) for name, value in read_headers(headers).items()}
    ops, who, options = settings().operations(), settings().who(), _options(networks, http)
    _show(ops.add_webhook(url, actor=who, headers=given, options=options, **chosen))


@command(cli, name="test", acts=True)
@click.argument("id")
@_destination_options
def test(id: str, networks: tuple[str, ...], http: bool) -> ExitCode:
    """Send a signed webhook.test event from this machine and show the response. Exits with 1 unless it is accepted."""
    result = settings().operations().test_webhook(id, actor=settings().who(), options=_options(networks, http))
    if not settings().tabular:
        show_json(settings(), result)
    elif result.status is None:
        note(f"no response: {result.error}")
    else:
        verdict = "accepted" if result.accepted else "refused"
        console().print(f"{verdict}: {result.status} after {result.latency.total_seconds() * 1000:.0f} ms")
        if result.excerpt:
            console().print(printable(result.excerpt))
    return ExitCode.DONE if result.accepted else ExitCode.PARTIAL


@command(cli, name="rotate-secret", acts=True)
@click.argument("id")
@click.option(
    "--overlap",
    default="1d",
    show_default=True,
    metavar="DURATION",
    help="Time for which requests are also signed with the old secret.",
)
@REASON
def rotate_secret(id: str, overlap: str, reason: str | None) -> None:
    """Rotate the secret of an endpoint. Prints the new secret, which is shown only once."""
    who = settings().who()
    _show(settings().operations().rotate_webhook_secret(id, actor=who, overlap=overlap, reason=reason))


def _show(added: "Added") -> None:
    if not settings().tabular:
        show_json(settings(), added)
        return
    console().print(f"id      {added.id}")
    console().print(f"secret  {added.secret}")
    note("save the secret, it is not shown again; the receiver needs it to verify signatures")


add_actions(cli, WEBHOOKS)
