"""Earlier revisions of Holdfast as subjects: each is unpacked once, with an environment and its own copy of the harness's programs."""

import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from functools import cache
from io import BytesIO
from pathlib import Path

from bench.environment import ROOT, Missing
from bench.subject import OURS, Kind, Subject, named

_HOME = ROOT / ".cache" / "bench" / "revisions"
_INSTALL_SECONDS = 600


def at_revision(revision: str, kind: Kind) -> Subject:
    """Ours as it was at this revision; the name of a branch or tag becomes the short id of its commit."""
    ours = named(OURS, kind)
    return replace(ours, variant=_commit(revision)[:8], revision=_commit(revision))


@cache
def checkout(commit: str) -> Path:
    """The folder of a revision, with its environment in `.venv`; made when first needed."""
    home = _HOME / commit
    stamp = home / ".venv" / "installed"
    if stamp.exists():
        return home
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    archive = _run(["git", "archive", "--format=tar", commit])
    with tarfile.open(fileobj=BytesIO(archive)) as tar:
        tar.extractall(home, filter="data")
    _run([sys.executable, "-m", "venv", str(home / ".venv")])
    python = str(home / ".venv" / "bin" / "python")
    packages = f"{home}[postgres,asyncpg,fast]"
    _run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-e", packages])
    stamp.touch()
    return home


@cache
def _commit(revision: str) -> str:
    return _run(["git", "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"]).decode().strip()


def _run(command: list[str]) -> bytes:
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=_INSTALL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{command[0]} failed: {error}") from error
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise Missing(f"`{' '.join(command[:3])} …` failed: {reason or 'no such revision'}")
    return done.stdout
