"""Counts that may stop at a bound and then are lower bounds."""

from collections.abc import Iterable


class BoundedCount(int):
    """A count, a lower bound if `or_more`. Formatting shows that with a plus sign; a sum keeps it.

    >>> f"{BoundedCount(10_000, or_more=True):,}", f"{BoundedCount(7):,}"
    ('10,000+', '7')
    >>> f"{sum([BoundedCount(10_000, or_more=True), BoundedCount(7)]):,}"
    '10,007+'
    """

    or_more: bool

    def __new__(cls, count: int = 0, or_more: bool = False) -> "BoundedCount":
        created = super().__new__(cls, count)
        created.or_more = or_more
        return created

    def __add__(self, other: int) -> "BoundedCount":
        if not isinstance(other, int):
            return NotImplemented
        return BoundedCount(int(self) + int(other), self.or_more or is_or_more(other))

    __radd__ = __add__

    def __format__(self, spec: str) -> str:
        return format(int(self), spec) + ("+" if self.or_more else "")


NONE = BoundedCount()


def total(counts: Iterable[BoundedCount]) -> BoundedCount:
    """The sum of counts, a lower bound if one of them is."""
    return sum(counts, NONE)


def is_or_more(count: object) -> bool:
    """Whether a count is a lower bound."""
    return isinstance(count, BoundedCount) and count.or_more
