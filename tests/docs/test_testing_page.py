"""The page about tests, as printed: its files run with pytest, for the shop and the service of the tutorial."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.postgres import PostgresServer

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to" / "test.md").read_text(encoding="utf-8")
TUTORIAL = (DOCS / "start" / "tutorial.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"```(?:python|ini)\n# ([^\n]*)\n(.*?)```", re.DOTALL)

pytestmark = pytest.mark.long


def _blocks(page: str, heading: str = "") -> dict[str, str]:
    """The files of a section by their names, as the page has them last."""
    _, _, rest = page.partition(f"\n## {heading}")
    return dict(BLOCK.findall(rest.partition("\n## ")[0] if heading else page))


def _write(folder: Path, **files: str) -> None:
    settings = {"pytest_ini": _blocks(PAGE)["pytest.ini"]}
    for name, text in (settings | files).items():
        (folder / ".".join(name.rsplit("_", 1))).write_text(text)


def _pytest(folder: Path) -> "subprocess.CompletedProcess[str]":
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_the_tests_of_the_shop_pass_and_leave_no_dead_letter(tmp_path: Path) -> None:
    files, further = _blocks(PAGE, "Your connections"), _blocks(PAGE, "See why")["conftest.py, a further fixture"]
    shop = _blocks(TUTORIAL)["shop.py"]
    _write(tmp_path, shop_py=shop, conftest_py=files["conftest.py"] + further, test_shop_py=files["test_shop.py"])
    ended = _pytest(tmp_path)
    assert ended.returncode == 0, ended.stdout
    assert "2 passed" in ended.stdout
    assert not (tmp_path / "shop.db").exists()


def test_the_further_fixture_fails_a_test_that_leaves_a_dead_letter_with_its_error(tmp_path: Path) -> None:
    files, further = _blocks(PAGE, "Your connections"), _blocks(PAGE, "See why")["conftest.py, a further fixture"]
    start = "def count_orders(ctx: Context, order: OrderPlaced) -> None:\n"
    shop = _blocks(TUTORIAL)["shop.py"].replace(start, f'{start}    raise ValueError("not today")\n')
    only_drain = (
        "import shop\n\nasync def test_an_order(holdfast):\n"
        "    shop.place_order('ada@example.com')\n    await holdfast.drain()\n"
    )
    _write(tmp_path, shop_py=shop, conftest_py=files["conftest.py"] + further, test_shop_py=only_drain)
    ended = _pytest(tmp_path)
    assert ended.returncode == 1, ended.stdout
    assert "1 passed, 1 error" in ended.stdout
    assert re.search(r"count_orders: [\w.]*ValueError: not today", ended.stdout), ended.stdout


def test_the_tests_of_the_service_pass_on_postgresql_and_leave_no_schema(
    postgres18: PostgresServer, tmp_path: Path
) -> None:
    dsn = postgres18.create_database("shop_test")
    files = _blocks(PAGE, "SQLAlchemy")
    placeholder = "postgresql://shop:shop@localhost/shop_test"
    assert placeholder in files["conftest.py"]
    _write(
        tmp_path,
        web_py=_blocks(TUTORIAL)["web.py"],
        conftest_py=files["conftest.py"].replace(placeholder, dsn),
        test_web_py=files["test_web.py"] + files["test_web.py"].replace("async def test_", "async def test_again_"),
    )
    ended = _pytest(tmp_path)
    assert ended.returncode == 0, ended.stdout
    assert "2 passed" in ended.stdout, "the fixture makes the tables for each test"
    schemas = "select nspname from pg_namespace where nspname like 'holdfast%'"
    assert postgres18.execute(schemas, database="shop_test") == []
    postgres18.drop_database("shop_test")
