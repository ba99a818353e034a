"""Migrations: numbered SQL files that only go forward, each applied once."""

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

from holdfast.core.errors import SchemaMismatch

_FILE = re.compile(r"^(\d{4})_(\w+)\.sql$")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema, as text with slots for the prefix."""

    version: int
    name: str
    text: str

    def render(self, constants: dict[str, str]) -> str:
        """The SQL to run. Only known slots are filled: braces occur in SQL, too."""
        text = self.text
        for slot, value in constants.items():
            text = text.replace("{" + slot + "}", value)
        return text


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """Which version the tables have (none: no tables), and which this release needs."""

    schema: str
    found: int | None
    expected: int

    @property
    def current(self) -> bool:
        return self.found == self.expected

    def check(self) -> None:
        """Raises `SchemaMismatch` unless they agree."""
        if not self.current:
            raise SchemaMismatch(self.schema, self.found, self.expected)


@cache
def migrations(package: str) -> tuple[Migration, ...]:
    """All migrations of a dialect, in order, numbered without a gap."""
    files = sorted(resources.files(package).iterdir(), key=lambda file: file.name)
    return tuple(
        Migration(int(match[1]), match[2], file.read_text(encoding="utf-8"))
        for file in files
        if (match := _FILE.match(file.name))
    )


def newest(package: str) -> int:
    """The version this release needs."""
    return migrations(package)[-1].version
