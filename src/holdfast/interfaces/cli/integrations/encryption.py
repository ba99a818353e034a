"""`holdfast encryption`: the keys of stored values, and their rotation."""

import click

from holdfast.interfaces.cli.exit_codes import ExitCode
from holdfast.interfaces.cli.output import ProgressLine, note, show_json, show_list
from holdfast.interfaces.cli.settings import command, group, settings
from holdfast.interfaces.cli.table import Column, count_column
from holdfast.interfaces.presentation.formatting import many
from holdfast.ops.encryption import KeyUse


@group("encryption")
def cli() -> None:
    """List the keys that stored values need, and encrypt values with the current key."""


@command(cli, name="keys")
def keys() -> None:
    """Count the stored values by the key that encrypts them. Needs no key, and reads all tables."""
    columns: list[Column[KeyUse]] = [
        Column("KIND", lambda one: one.kind),
        Column("KEY", lambda one: "not encrypted" if one.key is None else one.key),
        count_column("VALUES", lambda one: one.values),
    ]
    show_list(settings(), settings().operations().encryption_keys(), columns, "the store has no values")


@command(cli, name="rotate", acts=True)
@click.option(
    "--plain", is_flag=True, help="Also encrypt values that are not encrypted, from before the app had a cipher."
)
def rotate(plain: bool) -> None:
    """Encrypt stored values with the current key of the app's cipher.

    Needs --app. Values are changed in small transactions while workers run. It can be interrupted and started again.
    """
    ops = settings().operations()
    settings().confirm("encrypt again", "all stored values that have another key than the current one")
    with ProgressLine("encrypted") as progress:
        done = ops.rotate_encryption(actor=settings().who(), plain=plain, progress=progress)
    if settings().tabular:
        note(f"encrypted {many(done.rotated, 'value')} with key {done.key}")
        for one in done.unreadable:
            note(
                f"{one.kind}: {many(one.values, 'value')} of key {one.key} cannot be decrypted by this app and stay as they are"
            )
    else:
        show_json(settings(), done)
    if done.unreadable:
        raise click.exceptions.Exit(ExitCode.PARTIAL)
