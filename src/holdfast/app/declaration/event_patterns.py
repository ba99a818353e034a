"""The events that a decorator subscribes to: classes, names or patterns."""

from holdfast.app.declaration.handler_options import refuse_bare
from holdfast.core.errors import ConfigurationError
from holdfast.core.events.event import EventType, check_fields, event_type
from holdfast.core.events.pattern import check_pattern


def event_patterns(decorator: str, events: tuple[object, ...]) -> tuple[tuple[str, ...], EventType | None]:
    """The patterns that a decorator subscribes to, and the event class if it got one; refuses any other value."""
    if not events:
        raise ConfigurationError(f"{decorator}() names no event; give an event class, a name or a pattern")
    patterns = []
    for event in events:
        refuse_bare(f"{decorator}(OrderPlaced), with the event that it is for", event)
        if not isinstance(event, str | type):
            raise ConfigurationError(
                f"{decorator}: {event!r} is neither an event class nor a name; give each event as an argument"
            )
        patterns.append(check_pattern(event) if isinstance(event, str) else event_type(event).name)
    known = [check_fields(event_type(event)) for event in events if isinstance(event, type)]
    if known and len(events) > 1:
        raise ConfigurationError(
            f"{decorator}: give one event class, or only names and patterns, because a handler gets payloads of one type"
        )
    return tuple(dict.fromkeys(patterns)), known[0] if known else None
