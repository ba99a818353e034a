"""`holdfast version`: prints versions."""

import platform
import sqlite3
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

import click

from holdfast._version import __version__
from holdfast.interfaces.cli.output import show_json
from holdfast.interfaces.cli.settings import command, settings


@command(name="version")
def cli() -> None:
    """Print the versions of holdfast, Python, SQLite and psycopg."""
    found = {"holdfast": __version__, "python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
    try:
        found["psycopg"] = installed("psycopg")
    except PackageNotFoundError:
        found["psycopg"] = "not installed"
    if not settings().tabular:
        show_json(settings(), found)
        return
    for name, number in found.items():
        click.echo(f"{name} {number}")
