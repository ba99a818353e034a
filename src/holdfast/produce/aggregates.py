"""Events raised by SQLAlchemy aggregates: collected when a session flushes, published in its transaction.

An event commits and rolls back with its change: the flush that writes the change writes it, inside the same savepoint.
After a rollback a new object is transient again and has its events and attributes back: adding it again publishes them.
An existing object loses its events together with its changed attributes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count, groupby
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.core.errors import ConfigurationError
from holdfast.core.events.event import event_type
from holdfast.core.telemetry.correlation import correlation
from holdfast.produce.commit import innermost, undone_by

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import async_sessionmaker
    from sqlalchemy.orm import Session, SessionTransaction, scoped_session, sessionmaker

    Sessions = sessionmaker[Any] | async_sessionmaker[Any] | scoped_session[Any]

_RAISED = "_holdfast_raised"
_COLLECTED = "holdfast.collected"
_COLLECTOR = "_holdfast_collector"

# Events of several objects are published in the order in which they were raised.
_turns = count()


class BlockingPublisher(Protocol):
    """The blocking methods of an app that the collector needs."""

    def publish(
        self,
        event: object,
        payload: object = None,
        /,
        *,
        conn: Any,
        key: str | None = None,
        headers: Mapping[str, object] | None = None,
    ) -> object: ...

    def publish_many(
        self, events: list[object], *, conn: Any, headers: Mapping[str, object] | None = None
    ) -> object: ...


class EventPublisher(Protocol):
    """An app that publishes, such as `Holdfast`."""

    @property
    def sync(self) -> BlockingPublisher: ...


@dataclass(frozen=True, slots=True)
class _Raised:
    event: object
    key: str | Callable[[], str] | None
    headers: Mapping[str, object]
    turn: int = field(default_factory=_turns.__next__)


class RaisesEvents:
    """A mixin for mapped classes: the events that their methods raise are published by the commit that saves them.

    Needs `collect_events(hf, sessionmaker)` once. Raising does nothing else, so an aggregate can be tested alone.
    `session.merge()` copies columns but no events: raise them on the object that it returns.

    Examples:
        >>> class Order(RaisesEvents):  # and your declarative base
        ...     def ship(self) -> None:
        ...         self.raise_event("order.shipped", {"order_id": 7})
        >>> order = Order()
        >>> order.ship()
        >>> order.raised_events
        [('order.shipped', {'order_id': 7})]
    """

    def raise_event(
        self,
        event: object,
        payload: object = None,
        /,
        *,
        key: str | Callable[[], str] | None = None,
        headers: Mapping[str, object] | None = None,
    ) -> None:
        """Remembers an event until this object is saved; it is stored if and only if that transaction commits.

        `event` is an instance of an event class, a name (or class) and its `payload`, or a function that returns one
        of these: it is called after the flush, when the database has assigned ids. `key` may be a function too.

            self.raise_event(lambda: OrderPlaced(self.id), key=lambda: f"order:{self.id}:placed:v1")

        It carries the current correlation ids.
        """
        if isinstance(event, str | type) or payload is not None:
            event = (event, {} if payload is None else payload)
        elif not _is_late(event) and type(event) is not tuple:
            event_type(type(event))
        vars(self).setdefault(_RAISED, []).append(_Raised(event, key, {**correlation(), **(headers or {})}))
        _keep(self)

    @property
    def raised_events(self) -> list[object]:
        """The raised events that are not published yet, in order; for unit tests of an aggregate."""
        return [raised.event for raised in vars(self).get(_RAISED, ())]


def collect_events(hf: EventPublisher, sessions: "Sessions") -> None:
    """From now on, sessions of this maker publish the events of their aggregates before they commit.

    Takes a `sessionmaker`, an `async_sessionmaker` or a `scoped_session` around one.

    Examples:
        >>> from holdfast import Holdfast
        >>> from sqlalchemy.orm import sessionmaker
        >>> Session = sessionmaker()
        >>> collect_events(Holdfast("sqlite:///shop.db"), Session)
    """
    from sqlalchemy import event

    target = _target(sessions)
    known = vars(target).get(_COLLECTOR)
    if known is not None and known.hf is not hf:
        raise ConfigurationError("these sessions publish for another app already; give each app its own sessionmaker")
    if known is None:
        collector = _Collector(hf)
        setattr(target, _COLLECTOR, collector)
        event.listen(target, "after_flush", collector.take)
        event.listen(target, "after_flush_postexec", collector.publish)
        event.listen(target, "persistent_to_transient", collector.give_back)
        event.listen(target, "after_soft_rollback", collector.forget)
        event.listen(target, "after_transaction_end", collector.end)


@dataclass(slots=True)
class _Collected:
    """The events that one session collected during one transaction."""

    waiting: list[_Raised] = field(default_factory=list)
    taken: "list[tuple[RaisesEvents, list[_Raised], SessionTransaction | None]]" = field(default_factory=list)


class _Collector:
    def __init__(self, hf: EventPublisher) -> None:
        self.hf = hf

    def take(self, session: "Session", _: object) -> None:
        """During a flush: collects the events of the flushed objects."""
        collected: _Collected = session.info.setdefault(_COLLECTED, _Collected())
        for instance in (*session.new, *session.dirty, *session.deleted):
            if raised := _clear(instance):
                collected.taken.append((instance, raised, innermost(session)))
                collected.waiting.extend(raised)

    def publish(self, session: "Session", _: object) -> None:
        """Publishes the collected events after a flush, when every object has its identity and can be read."""
        collected: _Collected | None = session.info.get(_COLLECTED)
        if collected is None or not collected.waiting:
            return
        waiting = sorted(collected.waiting, key=lambda raised: raised.turn)
        collected.waiting = []
        for (batch, _headers), together in groupby(waiting, key=lambda r: (r.key is None, sorted(r.headers.items()))):
            if batch:
                self._publish_many(session, list(together))
            else:
                for raised in together:
                    self._publish_keyed(session, raised)

    def _publish_many(self, session: "Session", raised: list[_Raised]) -> None:
        self.hf.sync.publish_many([_named(one.event) for one in raised], conn=session, headers=raised[0].headers)

    def _publish_keyed(self, session: "Session", raised: _Raised) -> None:
        key = raised.key() if callable(raised.key) else raised.key
        named = _named(raised.event)
        event, payload = named if type(named) is tuple else (named, None)
        self.hf.sync.publish(event, payload, conn=session, key=key, headers=raised.headers)

    def give_back(self, session: "Session", instance: object) -> None:
        """Returns the events to their object after its INSERT was rolled back."""
        collected: _Collected | None = session.info.get(_COLLECTED)
        if collected is None or not isinstance(instance, RaisesEvents):
            return
        mine = [raised for holder, raised, _ in collected.taken if holder is instance]
        if mine:
            vars(instance)[_RAISED] = [*(one for some in mine for one in some), *vars(instance).get(_RAISED, ())]
            collected.taken = [one for one in collected.taken if one[0] is not instance]

    def forget(self, session: "Session", rolled_back: "SessionTransaction") -> None:
        """Drops the events of existing objects after a rollback, like their other changes."""
        for instance in session.identity_map.values():
            _clear(instance)
        if collected := session.info.get(_COLLECTED):
            collected.waiting = []
            collected.taken = [one for one in collected.taken if not undone_by(rolled_back, one[2])]

    def end(self, session: "Session", transaction: "SessionTransaction") -> None:
        if transaction.parent is None:
            session.info.pop(_COLLECTED, None)


def _target(sessions: Any) -> Any:
    """The session class that only this maker uses."""
    maker = getattr(sessions, "session_factory", sessions)
    kind = type(maker).__name__
    if kind == "async_sessionmaker":
        given = maker.kw.get("sync_session_class") or maker.class_.sync_session_class
        if _COLLECTOR not in vars(given):
            # Async sessions share one class of plain sessions; this maker gets a subclass, so that others do not collect.
            given = type(given.__name__, (given,), {})
            maker.configure(sync_session_class=given)
        return given
    if kind == "sessionmaker" or hasattr(maker, "class_"):
        return maker.class_
    raise ConfigurationError(f"collect_events() takes a sessionmaker or an async_sessionmaker, not {maker!r}")


def _clear(instance: object) -> list[_Raised]:
    """Removes and returns an object's events."""
    if not isinstance(instance, RaisesEvents):
        return []
    raised: list[_Raised] = vars(instance).pop(_RAISED, [])
    return raised


def _keep(instance: object) -> None:
    """Makes the session flush this object although no column changed, and keep a reference until then."""
    if not hasattr(instance, "_sa_instance_state"):
        return
    from sqlalchemy import inspect
    from sqlalchemy.orm.attributes import flag_dirty

    if inspect(instance).deleted:
        raise ConfigurationError(
            f"{type(instance).__name__} raised an event after its deletion was flushed, so the event would be lost; "
            "raise it before the flush"
        )
    flag_dirty(instance)


def _is_late(event: object) -> bool:
    return callable(event) and not isinstance(event, type) and "__holdfast_event__" not in vars(type(event))


def _named(event: object) -> object:
    """An event as `publish_many` accepts it: an instance, or a pair of name and payload."""
    return event() if _is_late(event) and callable(event) else event
