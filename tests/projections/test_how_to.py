"""The how-to's program and commands, as printed."""

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "projections.md").read_text()


def test_the_program_and_its_commands_run_as_printed(tmp_path: Path) -> None:
    ((name, program),) = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / name).write_text(program)

    def run(*words: str) -> str:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    run(name)
    with closing(sqlite3.connect(tmp_path / "totals.db")) as db, db:
        assert db.execute("select * from totals order by customer").fetchall() == [("ada", 2), ("bob", 1)]
        db.execute("delete from totals")
    rebuild = ("projectors", "rebuild", "totals", "--app", "totals:hf", "--reason", "counted tests, too")
    assert f'$ holdfast {" ".join(rebuild[:-1])} "{rebuild[-1]}"' in PAGE
    assert "projector totals: 3 events applied, new result active" in run("-m", "holdfast", *rebuild)
    listed = run("-m", "holdfast", "projectors", "list", "--dsn", "sqlite:///totals.db")
    assert "3 of 3" in listed
    print(listed)
    with closing(sqlite3.connect(tmp_path / "totals.db")) as db:
        assert db.execute("select * from totals order by customer").fetchall() == [("ada", 2), ("bob", 1)]
