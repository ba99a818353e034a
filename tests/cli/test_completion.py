"""Shell completion, as bash asks for it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Shop


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_asks_the_program(shop: Shop, shell: str) -> None:
    script = shop.run("completion", shell).stdout
    assert f"_HOLDFAST_COMPLETE={shell}_complete" in script


def test_bash_completes_commands_and_options(shop: Shop) -> None:
    """The script is sourced by a real bash, which fills its own list of candidates."""
    lines = [shop.run("completion", "bash").stdout]
    for words in ("holdfast dl", "holdfast deliveries list --stat"):
        lines.append(f"COMPREPLY=(); COMP_WORDS=({words}); COMP_CWORD={words.count(' ')}")
        lines.append('_holdfast_completion holdfast; echo "${COMPREPLY[@]}"')
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path}
    done = subprocess.run(["bash", "-c", "\n".join(lines)], capture_output=True, text=True, timeout=60, env=env)
    assert done.stdout.splitlines() == ["dlq", "--status"], done.stderr
