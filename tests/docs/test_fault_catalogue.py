"""The fault catalogue names tests, simulated faults and lab runs that exist, and leaves no fault out."""

import re
from pathlib import Path

from chaos.faults import FAULTS
from simulation.faults import Fault

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "explanation" / "faults.md"
NUMBERS = {*map(str, range(1, 71)), "17a", "17b", "17c"}


def test_each_fault_of_the_catalogue_names_what_injects_it_and_that_exists() -> None:
    rows = re.findall(r"^\| (\d+[a-c]?) [^|]+\|([^|]+)\|$", PAGE.read_text(), re.MULTILINE)
    assert {number for number, _ in rows} == NUMBERS
    assert len(rows) == len(NUMBERS)
    known = {f"lab: {one.name}" for one in FAULTS} | {f"simulation: {one}" for one in Fault}
    unknown = [
        (number, name)
        for number, injected in rows
        for name in injected.strip().split(", ")
        if name not in known and not _is_test(name.strip("`"))
    ]
    assert not unknown


def _is_test(name: str) -> bool:
    path, _, function = name.partition("::")
    file = TESTS / path
    return file.is_file() and re.search(rf"def {function}\(", file.read_text()) is not None
