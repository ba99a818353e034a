"""The programs on the pages for users of other libraries print what the pages say."""

import contextlib
import io
import re
import runpy
import sqlite3
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "docs" / "coming-from"
NAMES = sorted(page.stem for page in PAGES.glob("*.md") if page.stem != "index")


@pytest.mark.parametrize("name", NAMES)
def test_the_program_prints_what_the_page_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    pattern = rf"```python\n# (after_{name}\.py)\n(.*?)```\n\n```\n(.*?)```"
    ((file, program, expected),) = re.findall(pattern, page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path(file).write_text(program)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        app = runpy.run_path(file, run_name="__main__")["hf"]
    app.store.close_sync()
    assert printed.getvalue() == expected


def test_each_page_names_what_is_lost_and_marks_the_other_librarys_code() -> None:
    for name in NAMES:
        page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
        assert "\n## What you lose\n" in page
        assert len(re.findall(r"```python\n# .*, an excerpt\n", page)) == 1
        assert len(re.findall(r"```python\n", page)) == 2


def test_rows_of_an_outbox_are_moved_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ((program),) = re.findall(r"```python\n# after_outbox\.py\n(.*?)```", (PAGES / "outbox.md").read_text(), re.DOTALL)
    Path("shop.py").write_text(program)
    shop = runpy.run_path("shop.py")
    db = sqlite3.connect("shop.db")
    with db:
        db.execute("create table outbox (id integer primary key, type text, payload text, sent_at text)")
        db.execute("insert into outbox (type, payload) values ('order.placed', '7')")
    with db:
        shop["move_old_rows"](db)
    with db:
        db.execute("update outbox set sent_at = null")  # as if the table had been restored
        shop["move_old_rows"](db)
    assert db.execute("select count(*) from holdfast_message").fetchone() == (1,)
    db.close()
    shop["hf"].store.close_sync()
