"""Migrations: numbered SQL files, each applied once and never reversed."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from holdfast.core.errors import SchemaMismatch

_FILE = re.compile(r"^(\d{4})_(\w+)\.sql$")


@dataclass(frozen=True, slots=True)
class Migration:
    """One schema change, as SQL text with slots for the table prefix."""

    version: int
    name: str
    text: str

    def render(self, constants: dict[str, str]) -> str:
        """The SQL to run. Only known slots are filled, because SQL also contains braces."""
        text = self.text
        for slot, value in constants.items():
            text = text.replace("{" + slot + "}", value)
        return text


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """The version of the tables (None: no tables) and the version that this release needs."""

    schema: str
    found: int | None
    expected: int

    @property
    def current(self) -> bool:
        return self.found == self.expected

    def check(self) -> None:
        """Raises `SchemaMismatch` unless the versions are equal."""
        if not self.current:
            raise SchemaMismatch(self.schema, self.found, self.expected)


def missing(every: Sequence[Migration], schema: str, done: int) -> Sequence[Migration]:
    """The migrations after version `done`. Raises `SchemaMismatch` if the tables belong to a newer release."""
    if done > every[-1].version:
        raise SchemaMismatch(schema, done, every[-1].version)
    return [one for one in every if one.version > done]


@cache
def migrations(package: str) -> tuple[Migration, ...]:
    """All migrations of a dialect in order; the numbers have no gap."""
    files = sorted(resources.files(package).iterdir(), key=lambda file: file.name)
    return tuple(
        Migration(int(match[1]), match[2], file.read_text(encoding="utf-8"))
        for file in files
        if (match := _FILE.match(file.name))
    )


def newest(package: str) -> int:
    """The version that this release needs."""
    return migrations(package)[-1].version
