"""Tries the built wheel in a clean environment, with nothing else installed.

Usage: python -I wheel.py README.md [--cli] [--example]

Always: the package is imported from the environment, is typed, names its version and loads no optional dependency.
--cli: `holdfast version` prints that version.
--example: the README's first Python block runs as it is printed, in an empty directory.
The standard library only: this file runs where no test tool is installed.
"""

import argparse
import re
import subprocess
import sys
import sysconfig
import tempfile
from importlib.metadata import version
from pathlib import Path

OPTIONAL = {
    "aio_pika",
    "aiormq",
    "aiosqlite",
    "asyncpg",
    "confluent_kafka",
    "django",
    "httpx2",
    "jinja2",
    "nats",
    "psycopg",
    "redis",
    "sentry_sdk",
    "sqlalchemy",
    "starlette",
    "uvicorn",
}
EXAMPLE_PRINTS = "receipt 1 -> ada@example.com, attempt 3"


def main() -> None:
    parser = argparse.ArgumentParser(description="Try the installed wheel.")
    parser.add_argument("readme", type=Path)
    parser.add_argument("--cli", action="store_true")
    parser.add_argument("--example", action="store_true")
    arguments = parser.parse_args()
    readme = arguments.readme.read_text(encoding="utf-8")
    check_import()
    if arguments.cli:
        check_cli()
    if arguments.example:
        check_example(readme)


def check_import() -> None:
    import holdfast

    home = Path(str(holdfast.__file__)).parent
    expect(home.is_relative_to(sysconfig.get_path("purelib")), f"holdfast came from {home}, not from the wheel")
    expect((home / "py.typed").is_file(), "the wheel carries no py.typed")
    for file in ("templates/base.html", "static/console.css"):
        expect((home / "interfaces" / "console" / file).is_file(), f"the wheel carries no {file} of the console")
    expect(
        holdfast.__version__ == version("holdfast"),
        f"holdfast.__version__ is {holdfast.__version__}, the wheel's is {version('holdfast')}",
    )
    loaded = sorted(OPTIONAL & set(sys.modules))
    expect(not loaded, f"importing holdfast loaded {loaded}")


def check_cli() -> None:
    printed = run(program("holdfast"), "version", cwd=Path.cwd())
    expect(version("holdfast") in printed, f"`holdfast version` printed {printed!r}")


def check_example(readme: str) -> None:
    block = re.search(r"^```python\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)
    if block is None:
        raise SystemExit("wheel smoke test: the README has no Python block")
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory, "shop.py")
        script.write_text(block[1], encoding="utf-8")
        printed = run(Path(sys.executable), str(script), cwd=script.parent)
    expect(EXAMPLE_PRINTS in printed.splitlines(), f"the README's first example printed {printed!r}")


def program(name: str) -> Path:
    return Path(sysconfig.get_path("scripts"), name)


def run(command: Path, *arguments: str, cwd: Path) -> str:
    done = subprocess.run([command, *arguments], cwd=cwd, capture_output=True, text=True, timeout=60)
    expect(done.returncode == 0, f"{command.name} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def expect(held: bool, otherwise: str) -> None:
    if not held:
        raise SystemExit(f"wheel smoke test: {otherwise}")


if __name__ == "__main__":
    main()
