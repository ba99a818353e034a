"""Environments for the peers: one each, pinned, made when first needed; none of them is a dependency of the project."""

import hashlib
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
_PINS = Path(__file__).with_name("peers.toml")
_HOME = ROOT / ".cache" / "bench"
_INSTALL_SECONDS = 600


class Missing(Exception):
    """A peer cannot be measured here; the text says why and ends up in the report."""


@dataclass(frozen=True, slots=True)
class Pins:
    """What one environment is made of."""

    name: str
    packages: tuple[str, ...]
    python: str | None = None

    @property
    def stamp(self) -> str:
        return hashlib.sha256(repr((self.packages, self.python)).encode()).hexdigest()


@cache
def pins() -> dict[str, Pins]:
    """Every environment that `peers.toml` describes."""
    read = tomllib.loads(_PINS.read_text())
    return {name: Pins(name, tuple(one["packages"]), one.get("python")) for name, one in read.items()}


def interpreter(name: str | None) -> Path:
    """The Python of an environment, installed first if need be; without a name, our own. `Missing` says why not."""
    if name is None:
        return Path(sys.executable)
    found = _found(name)
    if isinstance(found, Missing):
        raise found
    return found


@cache
def _found(name: str) -> "Path | Missing":
    """What came of the one attempt to install it."""
    try:
        return _made(pins()[name])
    except Missing as error:
        return error


def _made(wanted: Pins) -> Path:
    name = wanted.name
    home = _HOME / name
    python, stamp = home / "bin" / "python", home / "installed"
    if stamp.exists() and stamp.read_text() == wanted.stamp:
        return python
    shutil.rmtree(home, ignore_errors=True)
    home.parent.mkdir(parents=True, exist_ok=True)
    _run(name, [_base(wanted), "-m", "venv", str(home)])
    _run(name, [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted.packages])
    stamp.write_text(wanted.stamp)
    return python


def _base(wanted: Pins) -> str:
    """Our own Python, so that all run on the same; a newer one only for a peer that does not accept it."""
    if wanted.python is None or sys.version_info[:2] >= _numbers(wanted.python):
        return sys.executable
    newest = _numbers(wanted.python)
    for minor in range(newest[1], newest[1] + 4):
        for candidate in _candidates(f"{newest[0]}.{minor}"):
            if _is(candidate, (newest[0], minor)):
                return candidate
    raise Missing(f"needs Python {wanted.python} or later; this machine has none with venv")


def _candidates(version: str) -> list[str]:
    found = [path for path in (shutil.which(f"python{version}"),) if path]
    return found + sorted(map(str, (Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python")))


def _is(python: str, version: tuple[int, int]) -> bool:
    # A pyenv shim may exist for a version that is not switched on, so each one is asked.
    ask = [python, "-c", "import sys, ensurepip, venv; print(*sys.version_info[:2])"]
    answer = subprocess.run(ask, capture_output=True, text=True, timeout=30, check=False)
    return answer.stdout.split() == [str(version[0]), str(version[1])]


def _numbers(version: str) -> tuple[int, int]:
    major, minor = version.split(".")
    return int(major), int(minor)


def _run(name: str, command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{name} cannot be installed: {error}") from error
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise Missing(f"{name} cannot be installed: {(errors or ['pip failed'])[-1]}")
