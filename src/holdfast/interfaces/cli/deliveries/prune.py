"""`holdfast prune`: deletes old completed deliveries."""

from datetime import timedelta

import click

from holdfast.core.values.duration import format_duration
from holdfast.interfaces.cli.filters import DURATION
from holdfast.interfaces.cli.output import ProgressLine, note, show_json
from holdfast.interfaces.cli.settings import command, settings
from holdfast.interfaces.presentation.formatting import many
from holdfast.ops.maintenance import Pruned


@command(name="prune", acts=True)
@click.option(
    "--older-than", type=DURATION, required=True, metavar="DURATION", help="Minimum age since completion: 30d, 12h."
)
@click.option("--discarded", is_flag=True, help="Also remove discarded and cancelled deliveries.")
@click.option(
    "--messages", is_flag=True, help="Also remove messages that are no longer needed. This shrinks the event store."
)
@click.option("--dry-run", is_flag=True, help="Count without changing anything.")
def cli(older_than: timedelta, discarded: bool, messages: bool, dry_run: bool) -> None:
    """Delete old completed deliveries, in small transactions. Dead letters are kept."""
    ops = settings().operations()
    if dry_run:
        _show(ops.prunable(older_than, discarded=discarded, messages=messages), "would remove")
        return
    settings().confirm("prune", f"deliveries that ended more than {format_duration(older_than)} ago")
    with ProgressLine("removed") as progress:
        removed = ops.prune(
            older_than,
            actor=settings().who(),
            discarded=discarded,
            messages=messages,
            progress=lambda so_far: progress(so_far.delivered + so_far.discarded + so_far.messages),
        )
    _show(removed, "removed")


def _show(pruned: Pruned, verb: str) -> None:
    if not settings().tabular:
        show_json(settings(), pruned)
        return
    parts = [many(pruned.delivered, "delivered", "delivered"), many(pruned.discarded, "discarded", "discarded")]
    parts += [many(pruned.messages, "message"), many(pruned.idempotency_keys, "idempotency key")]
    note(f"{verb} {', '.join(parts)}")
