"""The program and the commands of the guide, as printed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "workflows.md").read_text()


def test_the_program_and_its_commands_run_as_printed(tmp_path: Path) -> None:
    ((name, program),) = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / name).write_text(program)

    def run(*words: str) -> str:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    id = run(name).strip()
    for words in ("worker --app orders:hf --until-idle", "workflows list --dsn sqlite:///orders.db"):
        assert f"$ holdfast {words}" in PAGE
        run("-m", "holdfast", *words.split())
    shown = json.loads(
        run("-m", "holdfast", "workflows", "show", id, "--dsn", "sqlite:///orders.db", "--format", "json")
    )
    assert shown["state"] == "done"
    results = {step["name"]: step["result"] for step in shown["steps"]}
    assert results["ship"] == f"shipped: paid in session-{len(id) + len(':charge')}, approved by ada"


def test_every_command_of_the_guide_exists() -> None:
    known = subprocess.run(
        [sys.executable, "-m", "holdfast", "workflows", "--help"], capture_output=True, text=True, timeout=60
    ).stdout
    for verb in set(re.findall(r"\$ holdfast workflows (\w+)", PAGE)):
        assert f"\n  {verb} " in known, verb
