"""The pages and the README: every Python block is valid and imports what exists, and every link of the README leads to a file."""

import ast
import importlib
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^( *)```python[^\n]*\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
OTHER_LIBRARY = re.compile(r"# .*, an excerpt\n")


def blocks(page: Path) -> Iterator[str]:
    for _, code in BLOCK.findall(page.read_text(encoding="utf-8")):
        if not OTHER_LIBRARY.match(code):
            yield textwrap.dedent(code)


def imports(code: str) -> Iterator[tuple[str, str]]:
    """The names that a block imports from Holdfast, with their modules."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "holdfast":
            yield from ((node.module, one.name) for one in node.names)


def exists(module: str, name: str) -> bool:
    if module.startswith("holdfast.django"):  # needs a configured project; its page is tested with one
        return True
    try:
        if hasattr(importlib.import_module(module), name):
            return True
        importlib.import_module(f"{module}.{name}")
    except ImportError:
        return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_blocks_are_valid_and_import_what_exists(page: Path) -> None:
    for code in blocks(page):
        compile(code, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
        assert not [one for one in imports(code) if not exists(*one)], code


def test_blocks_and_imports_are_found() -> None:
    found = [code for page in PAGES for code in blocks(page)]
    assert len(found) > 80
    assert sum(len(list(imports(code))) for code in found) > 50
    assert not exists("holdfast", "Holdfats")


def test_each_link_of_the_readme_leads_to_a_file() -> None:
    links = re.findall(r"\]\(([^)#]+)", README.read_text(encoding="utf-8"))
    assert len(links) > 40
    assert not [link for link in links if "://" not in link and not (ROOT / link).is_file()]


def test_the_readme_and_the_page_about_guarantees_promise_the_same() -> None:
    promises = (ROOT / "docs" / "explanation" / "promises.md").read_text(encoding="utf-8")
    readme, page = (
        re.findall(r"^\d\. .*", text.partition("\n## ")[0], re.MULTILINE)
        for text in (README.read_text(encoding="utf-8").partition("\n## Guarantees\n")[2], promises)
    )
    assert len(readme) == 5
    assert readme == page


def test_the_readme_fits_on_a_few_screens() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150
