"""The program and the commands of the guide, as printed."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.interfaces.cli import main

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
PAGE = (HOW_TO / "workflows.md").read_text()
TUTORIAL = (HOW_TO / "workflows-tutorial.md").read_text()


def run(folder: Path, *words: str, **variables: str) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment | variables, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_programs(page: str, folder: Path) -> None:
    for name, program in re.findall(r"```(?:python|ini)\n# (\w+\.\w+)\n(.*?)```", page, re.DOTALL):
        (folder / name).write_text(program)


def test_the_program_and_its_commands_run_as_printed(tmp_path: Path) -> None:
    write_programs(PAGE, tmp_path)
    id = run(tmp_path, "orders.py").strip()
    for words in ("worker --app orders:hf --until-idle", "workflows list --dsn sqlite:///orders.db"):
        assert f"$ holdfast {words}" in PAGE
        run(tmp_path, "-m", "holdfast", *words.split())
    shown = json.loads(
        run(tmp_path, "-m", "holdfast", "workflows", "show", id, "--dsn", "sqlite:///orders.db", "--format", "json")
    )
    assert shown["state"] == "done"
    results = {step["name"]: step["result"] for step in shown["steps"]}
    assert results["ship"] == f"shipped: paid in session-{len(id) + len(':charge')}, approved by ada"


@pytest.mark.long
def test_the_program_with_items_child_runs_and_sleeps_prints_what_the_guide_says(tmp_path: Path) -> None:
    ((program, printed),) = re.findall(r"```python\n# albums\.py\n(.*?)```\n\n```\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "albums.py").write_text(program)
    assert run(tmp_path, "albums.py") == printed


@pytest.mark.long
def test_the_commands_of_the_tutorial_do_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("HOLDFAST_DSN", raising=False)
    write_programs(TUTORIAL, tmp_path)
    commands = [line.removeprefix("$ ") for line in re.findall(r"^\$ .*", TUTORIAL, re.MULTILINE)]
    printed: list[str] = []
    id = ""
    for command in commands:
        program, *words = shlex.split(command.replace("RUN", id))
        if program == "export":
            monkeypatch.setenv(*words[0].split("=", 1))
        elif words[0] == "workflows":
            sys.modules.pop("trips", None)  # as in a new process
            found = CliRunner().invoke(main, words)
            assert found.exit_code == 0, found.output
            printed.append(found.stdout)
        elif program != "pip":
            module = {"holdfast": ["-m", "holdfast"], "pytest": ["-m", "pytest", "-p", "no:cacheprovider"]}
            printed.append(run(tmp_path, *module.get(program, []), *words, HOLDFAST_APP="trips:hf").strip())
        if program == "python":
            id = printed[-1]
    assert "export HOLDFAST_APP=trips:hf" in commands
    first, again, _, shown, *_ = printed
    assert first == again
    assert "waits for signal approved" in shown
    assert printed[-2] == "cancelled seat 12A to Atlantis"
    assert f"\n{printed[-2]}\n" in TUTORIAL
    assert "2 passed" in printed[-1]
    listed = CliRunner().invoke(
        main, ["workflows", "list", "--dsn", f"sqlite:///{tmp_path}/trips.db", "--format", "json"]
    )
    assert {one["id"]: one["state"] for one in json.loads(listed.stdout)} == {first: "done", id: "failed"}


def test_every_command_of_the_guide_exists() -> None:
    known = subprocess.run(
        [sys.executable, "-m", "holdfast", "workflows", "--help"], capture_output=True, text=True, timeout=60
    ).stdout
    for verb in set(re.findall(r"\$ holdfast workflows (\w+)", PAGE + TUTORIAL)):
        assert f"\n  {verb} " in known, verb
