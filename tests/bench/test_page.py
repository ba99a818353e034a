import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from bench.page import insert, plots, render
from bench.table import number, table
from tests.bench.build import results

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(12345.6, "12,300"), (999.9, "1,000"), (3.14159, "3.14"), (1000.0, "1,000"), (0.0123, "0.0123")],
)
def test_a_number_has_three_digits_that_count(value: float, shown: str) -> None:
    assert number(value) == shown


def test_a_table_lines_up() -> None:
    assert table(("a", "bb"), [("ccc", "d")]) == "| a   | bb |\n| --- | -- |\n| ccc | d  |"


def test_the_page_keeps_what_is_written_around_the_results() -> None:
    page = (DOCS / "benchmarks.md").read_text()
    once = insert(page, "first")
    assert insert(once, "second") == insert(page, "second")
    assert once.startswith(page[: page.index("<!-- results -->")])


def test_plots_are_well_formed_and_name_every_subject() -> None:
    found = results(
        ("drain-postgres", "holdfast", "drain", 20.0),
        ("drain-postgres", "peer<&>", "drain", 10.0),
        ("growth", "holdfast", "processes", 10.0, 1),
        ("growth", "holdfast", "processes", 15.0, 2),
    )
    made = plots(found)
    assert set(made) == {"drain-postgres-drain", "growth-processes"}
    texts = {name: " ".join(ET.fromstring(svg).itertext()) for name, svg in made.items()}  # noqa: S314
    assert "holdfast" in texts["drain-postgres-drain"]
    assert "peer<&>" in texts["drain-postgres-drain"]


def test_a_page_shows_bars_figures_and_what_is_missing() -> None:
    found = results(("drain-postgres", "holdfast", "drain", 20.0), ("drain-postgres", "holdfast", "drain", 30.0))
    found.blame("drain-postgres", "peer", "missing", "needs another Python")
    page = render(found)
    assert "25 /s" in page
    assert "20 to 30" in page
    assert "needs another Python" in page
    assert "not measured" in page
    assert "](benchmarks/drain-postgres-drain.svg)" in page
