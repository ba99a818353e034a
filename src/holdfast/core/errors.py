"""Every exception Holdfast raises, in one tree.

::

    HoldfastError
    ├── ConfigurationError            a setting or declaration is wrong; fix the code
    │   └── InvalidDuration           (also ValueError)
    ├── InvalidName                   (also ValueError) a queue, consumer, source, schema, type …
    ├── InvalidPayload                (also ValueError) `.path` says where
    │   ├── PayloadTooLarge
    │   └── UnreadableRecord          a broker's record that cannot become a message
    ├── InvalidKey                    (also ValueError)
    │   └── KeyRequired               a request without an idempotency key where one is needed
    ├── KeyConflict                   one key, two different contents
    ├── UnsupportedConnection         (also TypeError)
    │   └── WrongDatabase
    ├── NoTransaction                 a connection in autocommit was handed in
    ├── NotFound
    ├── LeaseLost                     the claim belongs to someone else by now
    ├── ReservationLost               an idempotency key belongs to another request by now
    ├── RebuildLost                   a projector's rebuild belongs to another process by now
    ├── RebuildStopped                a projector's rebuild met an event that it cannot apply
    ├── AlreadyHandled                the effect was applied before; roll back
    ├── Refused                       an operator action the item's state does not allow
    ├── ServiceRefused                a service answered a call, and not with success
    ├── AddressRefused                a webhook leads to an address that must not be called
    ├── WebhookRefused                a webhook's receiver answered, and not with success
    ├── InvalidSignature              (also ValueError) a webhook that was received is not from its sender
    ├── BrokerUnavailable             a broker cannot be reached, or did not confirm
    ├── StoreError
    │   ├── StoreUnavailable
    │   │   ├── StoreLocked           SQLite: another connection holds a lock
    │   │   └── StoreTimeout          PostgreSQL: a time limit of the role or database ended a statement
    │   ├── PermissionDenied          PostgreSQL: the role lacks a grant
    │   ├── StoreReplaced             SQLite: the file was deleted or replaced while it was open
    │   ├── StoreBusy                 SQLite: a read snapshot could not become a write
    │   ├── SchemaMismatch
    │   ├── LogRewound                PostgreSQL: the event store was restored onto another server
    │   ├── EngineRunning             a second engine on one SQLite file
    │   └── LockTimeout               a migration could not get its lock
    └── Signal                        what a handler may raise *or* return
        ├── TerminalError             dead letter now
        ├── RetryAfter                retry then, clamped
        ├── Snooze                    again later, not a failure
        ├── Cancel                    discard, no alert
        ├── Outage                    our own infrastructure is out: block
        └── CircuitOpen               a dependency is out: park

Constructors take facts; the class words the message. Facts stay readable as attributes, and every
error survives `pickle` and `copy`, also in subclasses that change the constructor. The file is long
because it is the whole tree: a reader of a message finds every other one beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TypeVar
from uuid import UUID

from holdfast.core.duration import Duration, clamp_duration, format_duration, to_timedelta
from holdfast.core.mask import mask
from holdfast.core.text import safe_repr, safe_str

_E = TypeVar("_E", bound="HoldfastError")


def _rebuild(cls: type[_E], args: tuple[object, ...], state: Mapping[str, object]) -> _E:
    exc = cls.__new__(cls, *args)
    exc.__dict__.update(state)
    return exc


def _kept(value: object) -> object:
    """What may stay on an error: it must pickle, so of strange objects only their repr."""
    return value if isinstance(value, str | int | float | timedelta | UUID) else safe_repr(value)[:200]


def _shown(value: object, limit: int = 80) -> str:
    """Quoted, bounded and printable on any terminal, whatever was handed in."""
    text = safe_str(value)
    return repr(text if len(text) <= limit else text[: limit - 1] + "…")


class HoldfastError(Exception):
    """The root: `except HoldfastError` catches everything Holdfast raises on purpose."""

    # The default rebuilds by calling the constructor with `args`, which breaks as soon as a
    # subclass takes other parameters; a failure must survive a process boundary regardless.
    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, dict(self.__dict__))


class ConfigurationError(HoldfastError):
    """A setting or a declaration is wrong: nothing was stored or run, and trying again will not help."""


class InvalidDuration(ConfigurationError, ValueError):
    """A duration cannot be read or makes no sense."""

    def __init__(self, name: str, value: object, problem: str) -> None:
        self.name, self.value, self.problem = name, _kept(value), problem
        super().__init__(name, self.value, problem)

    def __str__(self) -> str:
        return (
            f"{self.name} {_shown(self.value)} {self.problem}; "
            "give seconds, a timedelta, or text such as '250ms', '30s', '5m', '1h30m', '2d', '1w'"
        )


class InvalidName(HoldfastError, ValueError):
    """A name was refused before it could reach a table, a label or an SQL identifier."""

    def __init__(self, kind: str, value: object, problem: str, allowed: str) -> None:
        self.kind, self.value, self.problem, self.allowed = kind, _kept(value), problem, allowed
        super().__init__(kind, self.value, problem, allowed)

    def __str__(self) -> str:
        return f"{self.kind} name {_shown(self.value)} is refused: {self.problem}; use {self.allowed}"


class InvalidPayload(HoldfastError, ValueError):
    """A payload or header cannot be stored as JSON without loss; nothing was stored.

    `path` says where, for instance ``$.items[3].price``.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path, self.problem = path, problem

    def __str__(self) -> str:
        return f"payload is refused at {self.path}: {self.problem}"


class PayloadTooLarge(InvalidPayload):
    """A payload is over its byte limit; nothing was stored."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__("$", f"{size:,} bytes of JSON, over the limit of {limit:,}")
        self.args = (size, limit)
        self.size, self.limit = size, limit

    def __str__(self) -> str:
        return f"payload is refused: {self.problem}; store the content elsewhere and send a reference to it"


class UnreadableRecord(InvalidPayload):
    """A record of a broker cannot become a message as it is; it is kept raw, as a dead letter."""

    def __init__(self, stream: str, id: str | None, problem: str) -> None:
        super().__init__("$", problem)
        self.args = (stream, id, problem)
        self.stream, self.id = stream, id

    def __str__(self) -> str:
        which = "a record without an id" if self.id is None else f"record {_shown(self.id)}"
        return f"{which} of {self.stream} cannot be read: {self.problem}; replay it once it can be"


class InvalidKey(HoldfastError, ValueError):
    """An idempotency or ordering key was refused; nothing was stored."""

    def __init__(self, value: object, problem: str) -> None:
        self.value, self.problem = _kept(value), problem
        super().__init__(self.value, problem)

    def __str__(self) -> str:
        return f"key {_shown(self.value)} is refused: {self.problem}"


class KeyRequired(InvalidKey):
    """A request came without an `Idempotency-Key` where one is needed; nothing was done."""

    def __init__(self) -> None:
        super().__init__("", "the request has no Idempotency-Key header; send one that is new for each operation")
        self.args = ()


class KeyConflict(HoldfastError):
    """A key that already names another message was used for different content; nothing was stored."""

    def __init__(self, source: str, key: str, message_id: UUID) -> None:
        super().__init__(source, key, message_id)
        self.source, self.key, self.message_id = source, key, message_id

    def __str__(self) -> str:
        return (
            f"key {_shown(self.key)} of source {_shown(self.source)} already names message {self.message_id}"
            ", whose type or payload differs; use a new key for new content (for instance raise its version)"
        )


class UnsupportedConnection(HoldfastError, TypeError):
    """A `conn` of a kind Holdfast cannot write to was handed in; nothing was stored."""

    def __init__(self, given: str, hint: str = "") -> None:
        super().__init__(given, hint)
        self.given, self.hint = given, hint

    def __str__(self) -> str:
        hint = self.hint or (
            "pass a sqlite3, psycopg or asyncpg connection, an SQLAlchemy Session, AsyncSession or "
            "Connection, a Django alias, or conn=None to commit on its own"
        )
        return f"cannot write through a connection of type {self.given}; {hint}"


class WrongDatabase(UnsupportedConnection):
    """A `conn` that leads to another database than the store's was handed in; nothing was written.

    `given` is where it leads, `store` names the store without a password.
    """

    def __init__(self, given: str, store: str) -> None:
        super().__init__(given, store)
        self.store = store

    def __str__(self) -> str:
        return (
            f"the connection handed in leads to {self.given}, and the store is {self.store}: no worker would ever see "
            "what is stored there, so nothing was written; pass a connection to the store's database, or give "
            "Holdfast(...) the DSN of the database that your data is in"
        )


class NoTransaction(HoldfastError):
    """A connection in autocommit with no open transaction was handed in; nothing was stored."""

    def __init__(self, given: str, hint: str = "") -> None:
        super().__init__(given, hint)
        self.given, self.hint = given, hint

    def __str__(self) -> str:
        hint = self.hint or "open a transaction around your own writes and this call"
        return (
            f"the {self.given} handed in commits every statement by itself, so the message could not share "
            f"the fate of your writes; {hint}, or pass conn=None to commit the message on its own"
        )


class NotFound(HoldfastError):
    """The item that was asked for does not exist in this store."""

    def __init__(self, what: str, id: object, hint: str = "check the id and whether it was pruned") -> None:
        self.what, self.id, self.hint = what, _kept(id), hint
        super().__init__(what, self.id, hint)

    def __str__(self) -> str:
        return f"no {self.what} {_shown(self.id)} in this store; {self.hint}"


class LeaseLost(HoldfastError):
    """The caller no longer owns the claim; its write changed nothing."""

    def __init__(self, delivery_id: UUID, fence: int) -> None:
        super().__init__(delivery_id, fence)
        self.delivery_id, self.fence = delivery_id, fence

    def __str__(self) -> str:
        return (
            f"delivery {self.delivery_id} is no longer held under fence {self.fence}: its lease ran out, or "
            "it was cancelled or replayed; roll back and stop, its present owner decides"
        )


class ReservationLost(HoldfastError):
    """The request no longer holds its idempotency key; let the exception roll the effect back."""

    def __init__(self, scope: str, key: str) -> None:
        super().__init__(scope, key)
        self.scope, self.key = scope, key

    def __str__(self) -> str:
        return (
            f"idempotency key {_shown(self.key)} of scope {_shown(self.scope)} is no longer held by this request: its "
            "lease ran out and another request took over, or an operator released it; roll back, the other answers"
        )


class RebuildLost(HoldfastError):
    """A rebuild is no longer this process's; what it wrote last changed nothing, and the live result is as it was."""

    def __init__(self, projector: str) -> None:
        super().__init__(projector)
        self.projector = projector

    def __str__(self) -> str:
        return (
            f"the rebuild of projector {_shown(self.projector)} is no longer this process's: its lease ran out, or "
            "another began; see `holdfast projectors list`, and rebuild again"
        )


class RebuildStopped(HoldfastError):
    """A rebuild met an event that its handler cannot apply; a result that is built beside it was not touched."""

    def __init__(self, projector: str, message_id: UUID, problem: str) -> None:
        super().__init__(projector, message_id, problem)
        self.projector, self.message_id, self.problem = projector, message_id, problem

    def __str__(self) -> str:
        return (
            f"the rebuild of projector {_shown(self.projector)} stopped at event {self.message_id}: {self.problem}; "
            f"mend the handler and rebuild again, or leave the event out with --skip {self.message_id}"
        )


class AlreadyHandled(HoldfastError):
    """This consumer applied this message before; let the exception roll the effect back."""

    def __init__(self, consumer: str, key: str) -> None:
        super().__init__(consumer, key)
        self.consumer, self.key = consumer, key

    def __str__(self) -> str:
        return (
            f"consumer {_shown(self.consumer)} has already handled {_shown(self.key)}; "
            "roll back, the delivery settles by itself"
        )


class Refused(HoldfastError):
    """An operator action is not allowed in the item's present state; nothing changed."""

    def __init__(self, action: str, item: str, state: str, remedy: str = "") -> None:
        super().__init__(action, item, state, remedy)
        self.action, self.item, self.state, self.remedy = action, item, state, remedy

    def __str__(self) -> str:
        text = f"cannot {self.action} {self.item}: it is {self.state}"
        return f"{text}; {self.remedy}" if self.remedy else text


class ServiceRefused(HoldfastError):
    """A service answered a call with something that is no success. `headers` holds Retry-After and Date.

    `body` is the beginning of what it said; it stays out of the message, where it could reach a log.
    """

    def __init__(
        self, service: str, method: str, path: str, status: int, headers: Mapping[str, str], body: str = ""
    ) -> None:
        self.service, self.method, self.path, self.status = service, method, path, status
        self.headers, self.body = dict(headers), body
        super().__init__(service, method, path, status, self.headers, body)

    def __str__(self) -> str:
        return f"{self.service} answered {self.status} to {self.method} {_shown(self.path, 200)}"


class AddressRefused(HoldfastError):
    """A webhook leads to an address that must not be called, such as one of our own network; nothing was sent."""

    def __init__(self, host: str, address: str) -> None:
        super().__init__(host, address)
        self.host, self.address = host, address

    def __str__(self) -> str:
        return (
            f"{_shown(self.host)} leads to {_shown(self.address)}, which is private or special, and nothing was sent; if it "
            "is meant, allow its network (WebhookOptions(allow_networks=...) or HOLDFAST_WEBHOOK_NETWORKS)"
        )


class WebhookRefused(HoldfastError):
    """A webhook's receiver answered with something that is no success. `headers` holds Retry-After and Date."""

    def __init__(self, host: str, status: int, phrase: str, excerpt: str, headers: Mapping[str, str]) -> None:
        self.host, self.status, self.phrase, self.excerpt, self.headers = host, status, phrase, excerpt, dict(headers)
        super().__init__(host, status, phrase, excerpt, self.headers)

    def __str__(self) -> str:
        said = f' and said "{self.excerpt}"' if self.excerpt else ""
        return f"{self.host} answered {self.status} {self.phrase}".rstrip() + said


class InvalidSignature(HoldfastError, ValueError):
    """A webhook that was received is not from the one who holds the secret, or is too old; do not trust it."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"webhook is refused: {self.problem}; answer 400 and do nothing"


class BrokerUnavailable(HoldfastError):
    """A broker cannot be reached or did not answer in time. `broker` names it without a password."""

    def __init__(self, broker: str, cause: str = "") -> None:
        # A client's own words may hold the address it was given.
        cause = mask(cause)
        super().__init__(broker, cause)
        self.broker, self.cause = broker, cause

    def __str__(self) -> str:
        cause = f" ({self.cause})" if self.cause else ""
        return f"broker {self.broker} cannot be reached{cause}; check that it runs and that its address is right"


class StoreError(HoldfastError):
    """The store could not do what was asked; what was written in the same transaction is not committed."""


class StoreUnavailable(StoreError):
    """The store cannot be reached. `store` names it without a password."""

    def __init__(self, store: str, cause: str = "") -> None:
        cause = mask(cause)
        super().__init__(store, cause)
        self.store, self.cause = store, cause

    def __str__(self) -> str:
        cause = f" ({self.cause})" if self.cause else ""
        return f"store {self.store} cannot be reached{cause}; check that it runs and that the DSN is right"


class PermissionDenied(StoreError):
    """The database refused a statement because the role lacks a grant; nothing was changed."""

    def __init__(self, store: str, cause: str) -> None:
        cause = mask(cause)
        super().__init__(store, cause)
        self.store, self.cause = store, cause

    def __str__(self) -> str:
        return (
            f"store {self.store} refused: {self.cause}; connect with a role that may do this, or grant it what "
            "docs/operate/roles.md lists"
        )


class StoreLocked(StoreUnavailable):
    """Other connections to the SQLite file hold a lock; nothing was stored. It can be tried again.

    `since` is when the write lock was first refused to this process; none when a commit could not go past readers.
    `holder` names the process that holds it, where that is known.
    """

    def __init__(
        self, store: str, since: datetime | None = None, held: timedelta | None = None, holder: str = ""
    ) -> None:
        super().__init__(store, "database is locked")
        self.since, self.held, self.holder = since, held, holder

    def __str__(self) -> str:
        if self.since is None or self.held is None:
            return (
                f"store {self.store} could not commit and has rolled back: another connection kept reading, which "
                "holds up writers in this journal mode; end its transaction or cursor, and let `PRAGMA journal_mode "
                "= WAL` succeed once while nothing else is connected"
            )
        return (
            f"store {self.store} is locked: another connection{self.holder and f' of {self.holder}'} has held the write "
            f"lock since {self.since:%Y-%m-%d %H:%M:%S} UTC ({self.held.total_seconds():,.0f} s); look there for a "
            "transaction that wrote and was neither committed nor rolled back"
        )


class StoreTimeout(StoreUnavailable):
    """PostgreSQL ended a statement at a time limit that is set for the role or the database. It can be tried again."""

    def __str__(self) -> str:
        return (
            f"store {self.store} ended a statement at a time limit ({self.cause}); it is tried again where that is safe. "
            "If it happens often, look for transactions that hold locks, or raise lock_timeout, statement_timeout, "
            "idle_in_transaction_session_timeout or transaction_timeout of the role (`alter role ... set ...`)"
        )


class StoreReplaced(StoreError):
    """The SQLite file was deleted or replaced while it was open; what is written through it now is lost."""

    def __init__(self, store: str, what: str) -> None:
        super().__init__(store, what)
        self.store, self.what = store, what

    def __str__(self) -> str:
        return (
            f"the file of store {self.store} was {self.what} while this process had it open, so this process stops "
            "using it; restore the file if that was not intended, and start this process again"
        )


class StoreBusy(StoreError):
    """SQLite could not let this transaction write; it must be rolled back. `cause` is SQLite's name for it."""

    def __init__(self, store: str = "SQLite", cause: str = "SQLITE_BUSY_SNAPSHOT") -> None:
        super().__init__(store, cause)
        self.store, self.cause = store, cause

    def __str__(self) -> str:
        if self.cause == "SQLITE_BUSY_SNAPSHOT":
            what = "this transaction read first and another connection wrote since, so it can no longer write"
        else:
            what = "another connection is writing, and a transaction that read first cannot wait for its turn"
        return (
            f"{self.store}: {what} ({self.cause}; a longer timeout does not help); roll back, and begin "
            "transactions that will write with BEGIN IMMEDIATE, as holdfast.immediate(conn) does, and for "
            "SQLAlchemy holdfast.begin_immediate(engine)"
        )


class SchemaMismatch(StoreError):
    """The tables are not at the version this release needs; nothing was read or written."""

    def __init__(self, schema: str, found: int | None, expected: int) -> None:
        super().__init__(schema, found, expected)
        self.schema, self.found, self.expected = schema, found, expected

    def __str__(self) -> str:
        if self.found is None:
            return f"schema {_shown(self.schema)} has no Holdfast tables; run `holdfast schema migrate`"
        what = f"schema {_shown(self.schema)} is at version {self.found}, this release needs {self.expected}"
        if self.found < self.expected:
            return f"{what}; run `holdfast schema migrate`"
        return f"{what}; upgrade holdfast in this environment"


class LogRewound(StoreError):
    """What was written of the event store's order comes from a server that counted further than this one does.

    So it is after a dump was restored: transaction ids start anew, and what commits now would be taken for old.
    """

    def __init__(self, done: str, newest: str) -> None:
        super().__init__(done, newest)
        self.done, self.newest = done, newest

    def __str__(self) -> str:
        return (
            f"the event store comes from another server (a reader got to {self.done or 'its start'}, the newest event "
            f"is of transaction {self.newest or '-'}, and this server has not come so far); nothing is read, so that "
            "nothing is skipped: see `holdfast doctor`"
        )


class EngineRunning(StoreError):
    """Another engine already works on this SQLite file; this one did not start."""

    def __init__(self, path: str, holder: str = "") -> None:
        super().__init__(path, holder)
        self.path, self.holder = path, holder

    def __str__(self) -> str:
        holder = f" ({self.holder})" if self.holder else ""
        return (
            f"another engine{holder} already works on {self.path}; stop it first, or move to PostgreSQL to "
            "run several (publishing and operating need no engine and go on)"
        )


class LockTimeout(StoreError):
    """A migration could not get its lock in time; nothing was changed."""

    def __init__(self, what: str, waited: Duration) -> None:
        self.what, self.waited = what, to_timedelta(waited, name="waited")
        super().__init__(what, self.waited)

    def __str__(self) -> str:
        return (
            f"{self.what} could not get its lock within {format_duration(self.waited)}; nothing was changed. "
            "Find the long transaction that holds it, end it or wait, and run it again"
        )


class Signal(HoldfastError):
    """What a handler may raise or return to say how its delivery goes on."""


class TerminalError(Signal):
    """Dead-letter this delivery now; running it again cannot help."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class RetryAfter(Signal):
    """Retry after `delay`, within the attempts budget and clamped by the retry policy.

    Numbers usually come from someone else's header, so a negative delay means now and an absurd one
    the longest there is; only what is no number at all is refused.
    """

    def __init__(self, delay: Duration, reason: str = "") -> None:
        self.delay, self.reason = clamp_duration(delay, name="delay"), reason
        super().__init__(self.delay, reason)

    def __str__(self) -> str:
        text = f"retry after {format_duration(self.delay)}"
        return f"{text}: {self.reason}" if self.reason else text


class Snooze(Signal):
    """Run again after `delay`; this run was no failure and its attempt is returned."""

    def __init__(self, delay: Duration) -> None:
        self.delay = to_timedelta(delay, name="delay")
        super().__init__(self.delay)

    def __str__(self) -> str:
        return f"snooze for {format_duration(self.delay)}"


class Cancel(Signal):
    """Discard this delivery: recorded, not counted as failed, not alerted."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Outage(Signal):
    """Our own `resource` is out: hold this consumer, spend no attempt, go on when it is back."""

    def __init__(self, resource: str) -> None:
        super().__init__(resource)
        self.resource = resource

    def __str__(self) -> str:
        return f"{self.resource} is out"


class CircuitOpen(Signal):
    """The circuit `name` is open: park this delivery until it may close, spend no attempt.

    `until` is kept as a timedelta (time until it may close) or as an aware datetime.
    """

    def __init__(self, name: str, until: Duration | datetime) -> None:
        self.name = name
        self.until: timedelta | datetime
        if isinstance(until, datetime):
            if until.utcoffset() is None:
                raise ConfigurationError(
                    f"CircuitOpen({name!r}) was given a naive datetime, {until}; give an aware one"
                )
            self.until = until
        else:
            self.until = clamp_duration(until, name="until")
        super().__init__(name, self.until)

    def __str__(self) -> str:
        if isinstance(self.until, datetime):
            return f"circuit {self.name} is open until {self.until.isoformat()}"
        return f"circuit {self.name} is open for {format_duration(self.until)}"
