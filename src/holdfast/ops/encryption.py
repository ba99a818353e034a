"""The keys of encrypted values: which are in use, and the rotation to the current one."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.core.errors import ConfigurationError
from holdfast.ops.steps import TaskSteps, call_store, transact
from holdfast.stores.admin.actions import record
from holdfast.stores.encryption.rotation import PLAIN, TABLES, Cursor, rotate_batch


@dataclass(frozen=True, slots=True)
class KeyUse:
    """The number of stored values of a kind that are encrypted with a key. The key None stands for values that are not encrypted."""

    kind: str
    key: str | None
    values: int


@dataclass(frozen=True, slots=True)
class Rotation:
    """What a rotation did: the key that encrypts, the values that it encrypted again, and those that this app cannot decrypt."""

    key: str
    rotated: int
    unreadable: tuple[KeyUse, ...]


def encryption_keys() -> TaskSteps[list[KeyUse]]:
    """The keys that stored values need, with the number of values of each kind. Needs no key; reads all tables once."""
    found: list[KeyUse] = []
    for table in TABLES:
        counts = Counter[str]()
        cursor: Cursor | None = table.start
        while cursor is not None:
            batch = yield from transact(rotate_batch(table, cursor))
            counts += batch.found
            cursor = batch.cursor
        found += _uses(table.name, counts)
    return found


def rotate_encryption(
    *, actor: str, plain: bool = False, progress: Callable[[int], None] | None = None
) -> TaskSteps[Rotation]:
    """Encrypts stored values with the current key of the app's cipher, in small transactions. Audited.

    Takes the values that have another key, with `plain` also those that are not encrypted. Values that the app cannot decrypt
    stay as they are and are counted. Workers and producers may run. It can be stopped at any time and started again.
    """
    encryption = yield from call_store(lambda store: store.dialect.encryption)
    if encryption is None:
        raise ConfigurationError(
            "there is no cipher to encrypt with; use the app, which has one: --app module:attribute on the command line, and "
            "Holdfast(cipher=AesGcm(keys={...}, current=...)) in the code"
        )
    current = encryption.current
    yield from transact(record(actor, "rotate_encryption", "store", "values", None, {"key": current, "plain": plain}))
    rotated, unreadable = 0, list[KeyUse]()
    for table in TABLES:
        refused = Counter[str]()
        cursor: Cursor | None = table.start
        while cursor is not None:
            batch = yield from transact(rotate_batch(table, cursor, encryption, plain=plain))
            rotated, cursor = rotated + batch.rotated, batch.cursor
            refused += batch.unreadable
            if progress is not None:
                progress(rotated)
        unreadable += _uses(table.name, refused)
    detail = {"key": current, "rotated": rotated, "unreadable": sum(one.values for one in unreadable)}
    yield from transact(record(actor, "rotate_encryption", "store", "values", None, detail))
    return Rotation(current, rotated, tuple(unreadable))


def _uses(kind: str, counts: Counter[str]) -> list[KeyUse]:
    return [KeyUse(kind, None if key == PLAIN else key, count) for key, count in sorted(counts.items())]
