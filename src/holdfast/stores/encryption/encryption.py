"""Encrypts the values that the statements of an operation write, and decrypts those that they return."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from holdfast.core.encryption import Cipher, decrypt, encrypt, encrypted_value
from holdfast.core.events.payload import same
from holdfast.stores.encryption.columns import RETURNED, STREAMED, WRITTEN, Place, ReturnedColumn, WrittenColumn
from holdfast.stores.operation import Columns, Query, Row, Rows, Steps

T = TypeVar("T")


class Encryption:
    """The encryption of a store. Values from before it was configured are read as they are."""

    def __init__(self, cipher: Cipher) -> None:
        self.cipher = cipher

    def steps(self, operation: Steps[T]) -> Steps[T]:
        """The same operation: its queries carry encrypted values, and it receives decrypted ones.

        A value that this process cannot decrypt stays encrypted, so that one row does not stop a claim or a list.
        """
        try:
            query = next(operation)
            while True:
                if query.name == "put_schedule":
                    rows = yield (yield from self._schedule(query))
                else:
                    rows = yield self._encrypted(query)
                returned = RETURNED.get(query.name)
                query = operation.send(rows if returned is None else self._decrypted(query, rows, returned))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            operation.close()

    def encrypt_again(self, stored: Any, place: Place) -> Any:
        """A stored value encrypted with the current key; None if this process cannot decrypt it."""
        read = self.read(stored, place)
        text = read if isinstance(read, str) else bytes(read).decode(errors="replace")
        return None if encrypted_value(text) is not None else self.write(read, place)

    @property
    def current(self) -> str:
        """The id of the key that encrypts."""
        return self.cipher.encrypt(b"", b"")[0]

    def _encrypted(self, query: Query) -> Query:
        if query.rows is not None and (streamed := STREAMED.get(query.name)) is not None:
            return query._replace(rows=self._streamed(query.rows, *streamed))
        for column in WRITTEN.get(query.name, ()):
            if column.batch is None:
                written = self.write(query.values[column.name], column.place(query.values))
                query = query._replace(values={**query.values, column.name: written})
            else:
                batch = self._batch(column, query.batches[column.batch], query.values)
                query = query._replace(batches={**query.batches, column.batch: batch})
        return query

    def _batch(self, column: WrittenColumn, batch: Columns, shared: Mapping[str, object]) -> Columns:
        names = [name for name in column.key if name in batch]
        keys = zip(*(batch[name] for name in names), strict=True)
        written = [
            self.write(value, column.place({**shared, **dict(zip(names, key, strict=True))}))
            for value, key in zip(batch[column.name], keys, strict=True)
        ]
        return {**batch, column.name: written}

    def _streamed(self, rows: Any, index: int, id: int) -> Iterator[Row]:
        for row in rows:
            yield (*row[:index], self.write(row[index], ("message", str(row[id]))), *row[index + 1 :])

    def _schedule(self, query: Query) -> Steps[Query]:
        """The change of a schedule. Arguments that are the same keep their text, or every call would change the schedule."""
        changed = self._encrypted(query)
        stored = yield Query("schedule", {"name": query.values["name"]})
        (column,) = RETURNED["schedule"]
        for row in stored:
            before, text = encrypted_value(str(row[column.position])), str(changed.values["args"])
            after = encrypted_value(text)
            if before is None or after is None or before.key != after.key:
                continue
            known = self.read(row[column.position], column.place(query, row))
            if encrypted_value(str(known)) is None and same(str(known), str(query.values["args"])):
                return changed._replace(values={**changed.values, "args": row[column.position]})
        return changed

    def _decrypted(self, query: Query, rows: Rows, columns: Sequence[ReturnedColumn]) -> Rows:
        return [self._row(query, row, columns) for row in rows]

    def _row(self, query: Query, row: Row, columns: Sequence[ReturnedColumn]) -> Row:
        found: Mapping[int, object] = {
            column.position: self.read(row[column.position], column.place(query, row))
            for column in columns
            if row[column.position] is not None
        }
        return [found.get(index, value) for index, value in enumerate(row)]

    def write(self, value: Any, place: Place) -> Any:
        """Encrypts a value for its place. Text stays text, bytes stay bytes, and None stays None."""
        if value is None:
            return None
        if isinstance(value, str):
            return encrypt(self.cipher, value.encode(), place)
        return encrypt(self.cipher, bytes(value), place).encode()

    def read(self, value: Any, place: Place) -> Any:
        """The decrypted value. A value that is not encrypted, or cannot be decrypted, is returned as it is stored."""
        if isinstance(value, str):
            found = decrypt(self.cipher, value, place)
            return found if isinstance(found, str) else found.decode()
        given = bytes(value)
        if not given.startswith(b'{"$encrypted"'):
            return given
        found = decrypt(self.cipher, given.decode(errors="replace"), place)
        return found.encode() if isinstance(found, str) else found
