"""What is installed with Holdfast: nothing with a known advisory, and nothing unused."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {name: several for name, several in PROJECT["optional-dependencies"].items() if name != "dev"}
GIVEN = [Requirement(one) for several in (PROJECT["dependencies"], *EXTRAS.values()) for one in several]

# The newest version that an advisory names as affected, or the last before its fix.
AFFECTED = {
    "anyio": ["4.3.0"],
    "cryptography": ["46.0.4", "46.0.6"],  # CVE-2026-26007, CVE-2026-39892
    "django": ["5.2.16"],  # CVE-2026-15307 and others
    "flask": ["3.1.2"],  # CVE-2026-27205
    "h11": ["0.14.0"],  # CVE-2025-43859
    "jinja2": ["3.1.5"],  # CVE-2025-27516
    "orjson": ["3.11.5"],  # CVE-2025-67221
    "sentry-sdk": ["2.7.1"],  # CVE-2024-40647
    "starlette": ["0.49.0", "1.0.0", "1.3.0"],  # CVE-2025-62727, CVE-2026-48710, CVE-2026-54283
}
IMPORTED_AS = {
    "confluent-kafka": "confluent_kafka",
    "nats-py": "nats",
    "opentelemetry-api": "opentelemetry",
    "psycopg": "psycopg",
    "sentry-sdk": "sentry_sdk",
}
# Holdfast does not import these itself: a caller hands in a connection, or another library needs it.
INDIRECT = {"anyio", "asyncpg"}


def test_versions_with_known_advisories_are_excluded() -> None:
    admitted = [
        f"{one.name} {version}" for one in GIVEN for version in AFFECTED.get(one.name, ()) if version in one.specifier
    ]
    assert admitted == []
    assert AFFECTED.keys() <= {one.name for one in GIVEN}


def test_everything_that_is_installed_is_used() -> None:
    code = "\n".join(file.read_text() for file in (ROOT / "src").rglob("*.py"))
    imported = set(re.findall(r"^\s*(?:import|from) (\w+)", code, re.MULTILINE)) | set(
        re.findall(r"import_module\(\"(\w+)", code)
    )
    names = {IMPORTED_AS.get(one.name, one.name) for one in GIVEN} - INDIRECT
    assert names - imported == set()


def test_a_message_about_a_missing_extra_has_the_quoted_command() -> None:
    named, commands = 0, []
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        named += len(re.findall(r"needs [^\n]*holdfast\[", text))
        commands += [f"{path.name}: {found}" for found in re.findall(r"install [^\n`]{0,3}holdfast\[[^`\n]*", text)]
    assert named > 10, "the source was not read"
    # Without quotes, zsh reads the brackets as a pattern.
    assert [one for one in commands if not re.search(r": install 'holdfast\[(\w+|\{self\.adapter\})\]'$", one)] == []


def test_begin_immediate_without_sqlalchemy_names_the_extra() -> None:
    program = """
import sys
sys.modules["sqlalchemy"] = None
from holdfast import ConfigurationError, begin_immediate
try:
    begin_immediate(object())
except ConfigurationError as error:
    print(error)
"""
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert shown.stdout == "begin_immediate() needs SQLAlchemy; run `pip install 'holdfast[sqlalchemy]'`\n", (
        shown.stderr
    )
