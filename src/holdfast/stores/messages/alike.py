"""Messages that differ only in id and payload, as columns: creating an object for each of them costs more than writing it."""

from collections.abc import Iterator, Sequence
from typing import overload
from uuid import UUID

from holdfast.core.message import NewMessage


class AlikeMessages(Sequence[NewMessage]):
    """At least one message without a key. Each has the values of `like`, except for id and payload."""

    __slots__ = ("ids", "like", "payloads")

    def __init__(self, like: NewMessage, ids: Sequence[UUID], payloads: Sequence[str]) -> None:
        self.like, self.ids, self.payloads = like, ids, payloads

    @classmethod
    def of(cls, messages: Sequence[NewMessage]) -> "AlikeMessages | None":
        """These messages as columns; None if they differ in more than id and payload, or have keys."""
        if isinstance(messages, AlikeMessages):
            return messages
        first = messages[0]
        shared = first[1:3], first[4:]
        if first.key is not None or any((m[1:3], m[4:]) != shared for m in messages):
            return None
        return cls(first, [m.id for m in messages], [m.payload for m in messages])

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> NewMessage: ...
    @overload
    def __getitem__(self, index: slice) -> "AlikeMessages": ...
    def __getitem__(self, index: int | slice) -> "NewMessage | AlikeMessages":
        if isinstance(index, slice):
            return AlikeMessages(self.like, self.ids[index], self.payloads[index])
        return self.like._replace(id=self.ids[index], payload=self.payloads[index])

    def __iter__(self) -> Iterator[NewMessage]:
        for id, payload in zip(self.ids, self.payloads, strict=True):
            yield self.like._replace(id=id, payload=payload)
