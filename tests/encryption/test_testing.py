"""The pytest plugin with an app that has a cipher, used as in a user's own tests."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.cipher import AesGcm
from holdfast.testing.harness import Harness
from tests.encryption.conftest import OLD
from tests.support.builders import sql

SECRET = "plaintext-4711"


@pytest.fixture
def holdfast_app() -> Holdfast:
    return Holdfast("sqlite:////nowhere/production.db", cipher=AesGcm({"old": OLD}))


@pytest.fixture
def holdfast_dsn(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/kit.db"


async def test_the_harness_finds_what_was_published(holdfast_app: Holdfast, holdfast: Harness) -> None:
    seen: list[str] = []

    @holdfast_app.job()
    async def greet(name: str) -> None:
        seen.append(name)

    await greet.enqueue(SECRET)
    holdfast.assert_enqueued(greet, name=SECRET)
    await holdfast.drain()
    assert seen == [SECRET]
    assert SECRET not in str(sql(holdfast_app.store, "select * from {hf}message"))


@pytest.mark.long
def test_the_program_of_the_guide_prints_what_the_guide_says(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "encryption.md").read_text()
    ((program, printed),) = re.findall(r"```python\n# vault\.py\n(.*?)```\n\n```\n(.*?)```", page, re.DOTALL)
    (tmp_path / "vault.py").write_text(program)
    done = subprocess.run([sys.executable, "vault.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == (printed, 0), done.stderr
    assert b"Lovelace" not in (tmp_path / "vault.db").read_bytes()
