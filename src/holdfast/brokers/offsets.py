"""Tracks the highest contiguous offset of a partition that is safe to commit."""

from collections import deque
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class TrackedOffset:
    """One delivered record. Compared by identity: after a rewind, another instance has the same offset."""

    partition: int
    offset: int
    done: bool = False


class Offsets:
    """The records of one partition, from their delivery until their offset may be committed.

    Offsets can have gaps, from compaction and transactions. A partition that is lost and assigned again gets a new
    `Offsets`, so a late settlement of a record of the old one has no effect.
    """

    __slots__ = ("_committed", "_partition", "_pending", "_position")

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self._pending: deque[TrackedOffset] = deque()
        self._position: int | None = None
        self._committed: int | None = None

    def __len__(self) -> int:
        """The number of records that are not done, or that are done but follow one that is not."""
        return len(self._pending)

    def __contains__(self, tracked: TrackedOffset) -> bool:
        return tracked in self._pending

    def track(self, offset: int) -> TrackedOffset:
        """Tracks a delivered record. An offset that was delivered before means that the partition was rewound."""
        self.rewind(offset)
        tracked = TrackedOffset(self._partition, offset)
        self._pending.append(tracked)
        return tracked

    def reach(self, offset: int) -> None:
        """Notes that every record before this offset was delivered.

        Transaction markers and aborted records can follow the last one, and are never delivered. Without this call the
        group would never catch up.
        """
        if self._pending:
            read = self._pending[-1].offset + 1
        else:
            read = self._position or 0
        if offset > read:
            self.settle(self.track(offset - 1))

    def settle(self, tracked: TrackedOffset) -> None:
        """Marks a record as done. Does nothing for a record that is not tracked here."""
        tracked.done = True
        while self._pending and self._pending[0].done:
            self._position = self._pending.popleft().offset + 1

    def rewind(self, offset: int) -> None:
        """Drops the records from this offset on: they will be delivered again."""
        while self._pending and self._pending[-1].offset >= offset:
            self._pending.pop()
        if self._position is not None and self._position > offset:
            self._position = self._committed  # it counted records that are delivered again

    @property
    def position(self) -> int | None:
        """The offset before which every record is done; None before the first one is."""
        return self._position

    def due(self) -> int | None:
        """The offset to commit; None if it has not moved since the last commit."""
        return None if self._position == self._committed else self._position

    def committed(self, offset: int | None) -> None:
        """Notes that a commit of this offset was sent; None after a failed commit."""
        self._committed = offset
