"""The two dialects have the same statements under the same names, and none that is unused."""

import re
from pathlib import Path

import pytest

import holdfast
from holdfast.stores.operation import Query
from holdfast.stores.postgres.dialect import PostgresDialect
from holdfast.stores.sqlite.dialect import SqliteDialect
from holdfast.stores.statement import Statements

SOURCE = Path(holdfast.__file__).parent
DIALECTS = {"postgres": PostgresDialect().statements, "sqlite": SqliteDialect().statements}


def test_both_hold_statements_of_the_same_names() -> None:
    assert DIALECTS["postgres"].names == DIALECTS["sqlite"].names


def test_both_hold_fragments_of_the_same_names() -> None:
    assert DIALECTS["postgres"].fragments == DIALECTS["sqlite"].fragments


def test_both_keep_their_statements_in_files_of_the_same_names() -> None:
    files = [
        {str(path.relative_to(SOURCE / "stores" / name)) for path in (SOURCE / "stores" / name / folder).rglob("*.sql")}
        for folder in ("statements", "migrations")
        for name in DIALECTS
    ]
    assert files[0] == files[1]
    assert files[2] == files[3]


@pytest.mark.parametrize("statements", DIALECTS.values(), ids=DIALECTS)
def test_every_statement_says_in_one_sentence_what_it_is_for(statements: Statements) -> None:
    wordless = [name for name in statements.names if not re.match(r"[A-Z].*\.$", statements.intent(name))]
    assert wordless == []


def test_every_statement_is_used() -> None:
    code = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    unused = [name for name in DIALECTS["postgres"].names if f'"{name}"' not in code]
    assert unused == []


@pytest.mark.parametrize("name", DIALECTS)
def test_every_fragment_is_used(name: str) -> None:
    code = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    texts = "\n".join(path.read_text() for path in (SOURCE / "stores" / name / "statements").rglob("*.sql"))
    # Filters are put together from the names of their fields.
    built = re.compile("|".join(re.findall(r'f"(where_\w*)\{', code)))
    unused = [
        fragment
        for fragment in DIALECTS[name].fragments
        if f'"{fragment}"' not in code and f"{{{fragment}}}" not in texts and not built.match(fragment)
    ]
    assert unused == []


@pytest.mark.parametrize("name", DIALECTS)
def test_no_statement_has_a_slot_that_is_not_filled(name: str) -> None:
    code = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    texts = "\n".join(path.read_text() for path in (SOURCE / "stores" / name / "statements").rglob("*.sql"))
    slots = set(re.findall(r"\{(\w+)\}", texts)) - DIALECTS[name].fragments
    assert [slot for slot in slots if f'"{slot}"' not in code] == []


def test_no_status_and_no_limit_is_a_parameter_where_postgresql_plans_by_it() -> None:
    """Measured: a parameter in their place turned a claim into a scan of the whole table."""
    claim = DIALECTS["postgres"].render("claim", (("suspicion", ("not_suspect",)),), 500)
    (text,) = claim[0].statements
    assert text.count("limit 500") == 2
    assert "status = 'pending'" in text


def test_a_step_whose_slot_is_empty_is_left_out() -> None:
    """A batch of steps in the middle of their runs has no joins to count and no runs to end."""
    parts = ("locking", "counted_joins", "next_steps", "joined", "woken_steps", "changed_runs", "woken_runs", "result")
    none = tuple((part, ()) for part in parts)
    one = tuple((part, ("successors",) if part == "next_steps" else ()) for part in parts)
    statements = DIALECTS["sqlite"]
    assert len(statements.render("advance", none, None)) == 3
    assert len(statements.render("advance", one, None)) == 4
    (step,) = DIALECTS["postgres"].render("advance", one, None)
    written = re.findall(r'(?:insert into|update) "holdfast"\.(\w+)', step.statements[0])
    assert written == ["delivery", "workflow_step", "delivery"]


def test_a_query_is_a_value() -> None:
    assert Query("claim", {"worker": "w1"}) == Query("claim", {"worker": "w1"})
