"""Rotation: encrypts stored values with the current key, in small transactions, with a cursor over each table.

A value is replaced only if it has not changed since it was read, so workers and producers may run. A rotation can be
stopped at any time: the next one finds the values that are left.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from holdfast.core.encryption import encrypted_value
from holdfast.stores.encryption.columns import Place, response_places, step_place
from holdfast.stores.encryption.encryption import Encryption
from holdfast.stores.operation import Query, Row, Steps, operation

PLAIN = ""
"""The id of the key of values that are not encrypted."""
_BATCH = 100
_NIL = UUID(int=0)

Cursor = tuple[Any, ...]


class EncryptedTable(NamedTuple):
    """A table with encrypted values, and the statements that read and replace them.

    A row contains the columns of `key`, further columns that `places` needs, and for each value the id of its
    encryption key and the value.
    """

    name: str
    read: str
    key: tuple[str, ...]
    start: Cursor
    values: Mapping[str, Callable[[Row], Place]]
    """For each statement that replaces a value, the place of the value."""


TABLES = (
    EncryptedTable(
        "messages", "encrypted_messages", ("id",), (_NIL,), {"reencrypt_message": lambda row: ("message", str(row[0]))}
    ),
    EncryptedTable(
        "results",
        "encrypted_results",
        ("delivery_id",),
        (_NIL,),
        {"reencrypt_result": lambda row: ("result", str(row[0]))},
    ),
    # Before the steps: a step that receives a signal copies the stored value.
    EncryptedTable(
        "signals", "encrypted_signals", ("id",), (_NIL,), {"reencrypt_signal": lambda row: ("signal", str(row[1]))}
    ),
    EncryptedTable(
        "steps",
        "encrypted_steps",
        ("run_id", "name", "occurrence"),
        (_NIL, "", 0),
        {
            "reencrypt_step_result": lambda row: step_place(row[0], row[1], row[2], row[3]),
            "reencrypt_step_item": lambda row: ("item", str(row[0]), str(row[1]), str(row[2])),
        },
    ),
    EncryptedTable(
        "schedules",
        "encrypted_schedules",
        ("name",),
        ("",),
        {"reencrypt_schedule": lambda row: ("schedule", str(row[0]))},
    ),
    EncryptedTable(
        "responses",
        "encrypted_responses",
        ("scope", "key"),
        ("", ""),
        {
            "reencrypt_response_headers": lambda row: response_places(row[0], row[1])[0],
            "reencrypt_response_body": lambda row: response_places(row[0], row[1])[1],
        },
    ),
    EncryptedTable(
        "endpoints",
        "encrypted_endpoints",
        ("id",),
        ("",),
        {
            "reencrypt_endpoint_headers": lambda row: ("endpoint headers", str(row[0])),
            "reencrypt_secret": lambda row: ("endpoint", str(row[0])),
            "reencrypt_previous_secret": lambda row: ("endpoint", str(row[0])),
        },
    ),
)


class RotatedBatch(NamedTuple):
    """`found` counts the values by the id of their key, `rotated` those that were encrypted again, `unreadable` those that this
    process cannot decrypt. `cursor` is where the next batch begins, None after the last one."""

    found: Counter[str]
    rotated: int
    unreadable: Counter[str]
    cursor: Cursor | None


@operation
def rotate_batch(
    table: EncryptedTable, cursor: Cursor, encryption: Encryption | None = None, *, plain: bool = False
) -> Steps[RotatedBatch]:
    """Encrypts the values of the next batch that have another key than the current one; with `plain` also those without a key.

    Without `encryption` it only counts the values by their keys.
    """
    current = None if encryption is None else encryption.current
    values = {f"after_{name}": value for name, value in zip(table.key, cursor, strict=True)}
    values |= {"current": current, "skipped": current if plain else PLAIN}
    rows = yield Query(table.read, values, limit=_BATCH)
    found, unreadable, rotated = Counter[str](), Counter[str](), 0
    for row in rows:
        row_key = dict(zip(table.key, row, strict=False))
        pairs = row[len(row) - 2 * len(table.values) :]
        for index, (statement, place) in enumerate(table.values.items()):
            key, stored = pairs[2 * index], pairs[2 * index + 1]
            if key is None and stored is None:
                continue
            key = _key_of(stored) if key is None else key
            found[key] += 1
            if stored is None or encryption is None or key == current or (key == PLAIN and not plain):
                continue
            new = encryption.encrypt_again(stored, place(row))
            if new is None:
                unreadable[key] += 1
            else:
                rotated += len((yield Query(statement, {**row_key, "old": stored, "new": new})))
    end = tuple(rows[-1][: len(table.key)]) if len(rows) == _BATCH else None
    return RotatedBatch(found, rotated, unreadable, end)


def _key_of(stored: str) -> str:
    found = encrypted_value(stored)
    return PLAIN if found is None else found.key
