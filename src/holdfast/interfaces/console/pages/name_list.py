"""Lists of names, such as queues and consumers. An application has few of them, so they are read as a whole, and filtered
and paged here."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from holdfast.interfaces.console.request import PAGE, ConsoleRequest

T = TypeVar("T")


def name_list(
    request: ConsoleRequest,
    items: Sequence[T],
    key: Callable[[T], str],
    filters: Mapping[str, Callable[[T, str], bool]],
    *,
    size: int = PAGE,
) -> dict[str, Any]:
    """The variables of a page with the items that match the filters in the URL. `after` is the key of the last item of the
    page before; if it does not exist any more, the list starts from the beginning."""
    chosen = request.chosen(*filters)
    rows = [one for one in items if all(filters[name](one, text) for name, text in chosen.items())]
    after = request.query.get("after")
    start = next((n for n, one in enumerate(rows, 1) if key(one) == after), 0)
    shown = rows[start : start + size]
    return {
        "rows": shown,
        "chosen": chosen,
        "page_words": ("First", "Next"),
        **request.page_links(key(shown[-1]) if start + size < len(rows) else None, cursor="after"),
    }


def contains(*texts: Callable[[Any], str | None]) -> Callable[[Any, str], bool]:
    """A filter that finds a text in one of these fields, ignoring case."""
    return lambda one, text: any(text.lower() in (read(one) or "").lower() for read in texts)
