"""Which offset of a partition may be committed: the one before which everything that was handed over is done."""

from collections import deque
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Handed:
    """One record that was handed over, told apart from another of the same offset by what it is."""

    partition: int
    offset: int
    done: bool = False


class Offsets:
    """The records of one partition, from being handed over until their offset may be committed.

    Offsets need not follow each other closely: compaction and transactions leave gaps. A partition that is lost and
    won back begins with a new `Offsets`, so whatever is still said about records of the old one changes nothing.
    """

    __slots__ = ("_committed", "_held", "_partition", "_position")

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self._held: deque[Handed] = deque()
        self._position: int | None = None
        self._committed: int | None = None

    def __len__(self) -> int:
        """How many are held up: not done, or done after one that is not."""
        return len(self._held)

    def __contains__(self, handed: Handed) -> bool:
        return handed in self._held

    def hand(self, offset: int) -> Handed:
        """Takes note of a record. An offset that came before means that the partition is read again from there."""
        self.rewind(offset)
        handed = Handed(self._partition, offset)
        self._held.append(handed)
        return handed

    def reach(self, offset: int) -> None:
        """Every record before this offset was handed over.

        After the last of them there may be markers of transactions and records of aborted ones, which nobody is handed.
        Without this the group would seem to be behind for ever.
        """
        if self._held:
            read = self._held[-1].offset + 1
        else:
            read = self._position or 0
        if offset > read:
            self.settle(self.hand(offset - 1))

    def settle(self, handed: Handed) -> None:
        """This one is done. What is not held here, any more or at all, is passed over."""
        handed.done = True
        while self._held and self._held[0].done:
            self._position = self._held.popleft().offset + 1

    def rewind(self, offset: int) -> None:
        """Forgets what was handed over from this offset on: it will be handed over again."""
        while self._held and self._held[-1].offset >= offset:
            self._held.pop()
        if self._position is not None and self._position > offset:
            self._position = self._committed  # it spoke of records that come again, or of others that were there

    @property
    def position(self) -> int | None:
        """The offset before which everything is done; None before the first record is."""
        return self._position

    def due(self) -> int | None:
        """The offset to commit, None where nothing moved since the last time."""
        return None if self._position == self._committed else self._position

    def committed(self, offset: int | None) -> None:
        """This offset is committed, or on its way; None when that went wrong."""
        self._committed = offset
