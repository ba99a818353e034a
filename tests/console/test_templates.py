"""Templates of the console: formatted, one component per file."""

from pathlib import Path

import pytest

import holdfast.interfaces.console

TEMPLATES = Path(holdfast.interfaces.console.__file__).parent / "templates"


@pytest.mark.parametrize("path", sorted(TEMPLATES.rglob("*.html")), ids=lambda path: path.stem)
def test_no_line_is_longer_than_120_characters(path: Path) -> None:
    long = {n: len(line) for n, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if len(line) > 120}
    assert not long, f"{path.name}: break these lines inside a tag or an expression: {long}"


def test_only_components_define_macros_that_pages_share() -> None:
    base = (TEMPLATES / "base.html").read_text(encoding="utf-8")
    components = sorted(path.stem for path in (TEMPLATES / "components").iterdir())
    assert all(f"components/{name}.html" in base for name in components)
    assert "{% macro" not in base
