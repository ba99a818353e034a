"""Every statement that touches an encrypted column is listed, on both dialects."""

import re

import pytest

from holdfast.stores.encryption.columns import RETURNED, STREAMED, WRITTEN
from holdfast.stores.encryption.rotation import TABLES
from holdfast.stores.postgres.dialect import PostgresDialect
from holdfast.stores.sqlite.dialect import SqliteDialect

COLUMN = re.compile(
    r"\b(?:payload|result|item|response_body|response_headers|secret|previous_secret|args)\b|(?<=e\.)headers\b"
)
UNAFFECTED = {
    # Results of plans, and tables of that name.
    *("list_plan_items", "unsettled_plans", "unsettled_plan_items", "record_plan_results"),
    *("forget_results", "prune_deliveries", "remove_deliveries", "travel"),
    # The size of a value, whether there is one, or null.
    *("log_ahead", "log_behind", "list_requests", "reopen_wait", "reset_steps", "workflow_run_item_counts"),
    # SQLite inserts a join without a result.
    "advance_completed",
    # Text search skips encrypted text.
    "search_deliveries",
    # An encrypted payload has none of the fields.
    "field_values",
    # A rotation reads and writes values as they are stored.
    *(table.read for table in TABLES),
    *(statement for table in TABLES for statement in table.values),
}


@pytest.mark.parametrize("dialect", [SqliteDialect(), PostgresDialect()], ids=lambda one: one.name)
def test_a_statement_with_such_a_column_is_listed(dialect: SqliteDialect | PostgresDialect) -> None:
    known = dialect.statements
    touching = set()
    for name, statement in known._statements.items():
        text = "\n".join(line for step in statement.steps for line in step.statements)
        for _ in range(5):
            text = re.sub(r"\{(\w+)\}", lambda slot: known._fragments.get(slot[1], slot[0]), text)
        if COLUMN.search(re.sub(r"--.*", "", text)):
            touching.add(name)
    listed = {*WRITTEN, *RETURNED, *STREAMED}
    assert touching - listed - UNAFFECTED == set()
    assert listed - touching == set()
    assert not listed & UNAFFECTED
