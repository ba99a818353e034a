"""A count that was given up at a bound: so many, or more."""

from collections.abc import Iterable


class BoundedCount(int):
    """A number of things, a lower bound when `or_more`. Text for people shows that; a sum keeps it.

    >>> f"{BoundedCount(10_000, or_more=True):,}", f"{BoundedCount(7):,}"
    ('10,000+', '7')
    >>> f"{sum([BoundedCount(10_000, or_more=True), BoundedCount(7)]):,}"
    '10,007+'
    """

    or_more: bool

    def __new__(cls, count: int = 0, or_more: bool = False) -> "BoundedCount":
        made = super().__new__(cls, count)
        made.or_more = or_more
        return made

    def __add__(self, other: int) -> "BoundedCount":
        if not isinstance(other, int):
            return NotImplemented
        return BoundedCount(int(self) + int(other), self.or_more or is_or_more(other))

    __radd__ = __add__

    def __format__(self, spec: str) -> str:
        return format(int(self), spec) + ("+" if self.or_more else "")


NONE = BoundedCount()


def total(counts: Iterable[BoundedCount]) -> BoundedCount:
    """The sum of counts, a lower bound when one of them is."""
    return sum(counts, NONE)


def is_or_more(count: object) -> bool:
    """Whether a count is only a lower bound."""
    return isinstance(count, BoundedCount) and count.or_more
