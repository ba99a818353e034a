"""The how-to's program, as printed."""

import json
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "observe.md"


def test_the_program_runs_as_printed_and_shows_what_is_printed(tmp_path: Path) -> None:
    text = PAGE.read_text()
    ((name, program),) = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.DOTALL)
    (tmp_path / name).write_text(program)
    done = subprocess.run([sys.executable, name], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60)
    lines = {line["event"]: line for line in map(json.loads, done.stdout.splitlines())}
    printed = re.findall(r"```text\n(\{.*?)```", text, re.DOTALL)[0].splitlines()
    for one in printed:
        shown = json.loads(one.replace(", …}", "}"))
        assert shown.items() <= lines[shown["event"]].items()
    assert "4111" not in done.stdout + done.stderr
    assert "hunter2" not in done.stdout + done.stderr


def test_every_metric_of_the_table_exists() -> None:
    from tests.observe.test_dashboards import names

    exported = {name.removesuffix("_bucket") for name in names()}
    assert set(re.findall(r"`(holdfast_\w+)`", PAGE.read_text())) <= exported
