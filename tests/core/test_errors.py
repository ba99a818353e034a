"""Every error says what happened, survives pickle and copy, and hangs in the tree that is drawn."""

import copy
import inspect
import pickle
import re
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from holdfast.core import errors
from holdfast.core.errors import (
    AddressRefused,
    AlreadyCompleted,
    AlreadyHandled,
    BatchError,
    BrokerUnavailable,
    Cancel,
    CircuitOpen,
    ConfigurationError,
    DecryptionFailed,
    EncryptionKeyMissing,
    EngineRunning,
    EngineStopping,
    HoldfastError,
    InvalidDuration,
    InvalidKey,
    InvalidName,
    InvalidPayload,
    InvalidSignature,
    JobFailed,
    KeyConflict,
    KeyRequired,
    LeaseLost,
    LockTimeout,
    LogRewound,
    NotFound,
    NoTransaction,
    Outage,
    PayloadTooLarge,
    PermissionDenied,
    RebuildLost,
    RebuildStopped,
    Refused,
    ReservationLost,
    RetryAfter,
    SchemaMismatch,
    ServiceRefused,
    Signal,
    Snooze,
    StoreBusy,
    StoreError,
    StoreLocked,
    StoreReplaced,
    StoreTimeout,
    StoreUnavailable,
    TerminalError,
    TransactionConflict,
    UnreadableRecord,
    UnsupportedConnection,
    WebhookRefused,
    WorkflowFailed,
    WrongDatabase,
)

ID = UUID("01890000-0000-7000-8000-000000000001")
AT = datetime(2026, 1, 2, tzinfo=UTC)

SAMPLES: list[tuple[HoldfastError, list[str]]] = [
    (ConfigurationError("queue 'a' is declared twice"), ["declared twice"]),
    (InvalidDuration("timeout", "5 parsecs", "cannot be read"), ["timeout", "5 parsecs", "'30s'"]),
    (InvalidName("queue", "a b", "character ' ' is wrong", "letters"), ["queue", "'a b'", "use letters"]),
    (InvalidPayload("$.a[3]", "nan is not JSON"), ["$.a[3]", "nan is not JSON"]),
    (PayloadTooLarge(2_000_000, 1_048_576), ["2,000,000", "1,048,576", "reference"]),
    (UnreadableRecord("redis:pay", "5-0", "is not JSON"), ["'5-0'", "redis:pay", "is not JSON", "replay it"]),
    (UnreadableRecord("rabbitmq:pay", None, "is not JSON"), ["without an id", "rabbitmq:pay"]),
    (InvalidKey("a\n", "not printable"), [r"'a\n'", "not printable"]),
    (KeyConflict("shop", "order:1", ID), ["'shop'", "'order:1'", str(ID), "new key"]),
    (EncryptionKeyMissing("2026-05"), ["key '2026-05'", "does not have", "Holdfast(cipher="]),
    (DecryptionFailed("2026-05", "message 7"), ["message 7", "key '2026-05'", "changed or copied", "backup", "replay"]),
    (UnsupportedConnection("builtins.dict"), ["builtins.dict", "psycopg", "conn=None"]),
    (UnsupportedConnection("x.Cursor", "pass its connection"), ["x.Cursor", "pass its connection"]),
    (
        WrongDatabase("/srv/orders.db", "sqlite:///jobs.db"),
        ["/srv/orders.db", "sqlite:///jobs.db", "nothing was written"],
    ),
    (NoTransaction("psycopg.Connection"), ["psycopg.Connection", "transaction", "conn=None"]),
    (NoTransaction("asyncpg.Connection", "use conn.transaction()"), ["asyncpg", "use conn.transaction()"]),
    (NotFound("delivery", ID), ["delivery", str(ID)]),
    (LeaseLost(ID, 7), [str(ID), "fence 7", "roll back"]),
    (AlreadyCompleted(ID, 7), [str(ID), "already completed", "call ctx.complete once"]),
    (AlreadyCompleted(ID, 7, 100), ["the batch that starts with", str(ID), "call ctx.complete once"]),
    (LeaseLost(ID, 7, 100), [str(ID), "one of the 100 deliveries", "roll back"]),
    (KeyRequired(), ["Idempotency-Key", "send one"]),
    (RebuildLost("totals"), ["'totals'", "rebuild again"]),
    (RebuildStopped("totals", ID, "ValueError: no"), ["'totals'", str(ID), "ValueError: no", f"--skip {ID}"]),
    (ReservationLost("tenant-1", "k-1"), ["'tenant-1'", "'k-1'", "roll back"]),
    (AlreadyHandled("billing", "order:1"), ["'billing'", "'order:1'", "roll back"]),
    (
        Refused("replay", f"delivery {ID}", "in flight", "cancel it first"),
        ["replay", "in flight", "cancel it"],
    ),
    (
        ServiceRefused("billing", "POST", "/pay", 503, {"Retry-After": "5"}, "busy"),
        ["billing answered 503 to POST '/pay'"],
    ),
    (AddressRefused("acme.test", "10.0.0.1"), ["acme.test", "10.0.0.1", "nothing was sent", "allow_networks"]),
    (WebhookRefused("acme.test", 503, "Service Unavailable", "busy", {"date": "x"}), ["acme.test", "503", '"busy"']),
    (WebhookRefused("acme.test", 599, "", "", {}), ["acme.test answered 599"]),
    (InvalidSignature("no signature matches"), ["no signature matches", "400"]),
    (StoreError("could not write"), ["could not write"]),
    (BrokerUnavailable("kafka:orders", "timed out"), ["kafka:orders", "(timed out)", "check"]),
    (StoreUnavailable("postgresql://db/shop", "refused"), ["postgresql://db/shop", "(refused)", "check"]),
    (EngineStopping("sqlite:///shop.db", "process 7"), ["sqlite:///shop.db", "process 7", "--grace"]),
    (StoreLocked("sqlite:///shop.db"), ["rolled back", "journal_mode"]),
    (StoreTimeout("postgresql://db/shop", "lock timeout"), ["lock timeout", "alter role"]),
    (
        StoreLocked("sqlite:///shop.db", AT, timedelta(seconds=31), "process 4711"),
        ["another connection of process 4711", "2026-01-02 00:00:00 UTC (31 s)", "neither committed"],
    ),
    (PermissionDenied("postgresql://db/shop", "permission denied for table plan"), ["table plan", "operate/roles.md"]),
    (StoreReplaced("sqlite:///shop.db", "deleted"), ["sqlite:///shop.db", "was deleted", "start this process again"]),
    (StoreBusy(), ["SQLITE_BUSY_SNAPSHOT", "wrote since", "BEGIN IMMEDIATE", "roll back"]),
    (StoreBusy("shop.db", "SQLITE_BUSY"), ["shop.db", "another connection is writing", "BEGIN IMMEDIATE"]),
    (TransactionConflict("start a run"), ["start a run", "repeatable read", "run the transaction again"]),
    (
        WorkflowFailed("order", ID, "failed", "step charge is dead"),
        [str(ID), "'order' failed: step charge is dead", "holdfast workflows show"],
    ),
    (WorkflowFailed("order", ID, "cancelled", None), ["was cancelled; see"]),
    (
        JobFailed("send_mail", ID, ID, "failed", "ValueError", "no address"),
        ["'send_mail' failed for message", "ValueError: no address", f"holdfast deliveries show {ID}"],
    ),
    (JobFailed("send_mail", ID, ID, "cancelled"), ["was cancelled for message"]),
    (SchemaMismatch("holdfast", None, 3), ["no Holdfast tables", "holdfast schema migrate"]),
    (SchemaMismatch("holdfast", 2, 3), ["version 2", "needs 3", "holdfast schema migrate"]),
    (SchemaMismatch("holdfast", 4, 3), ["version 4", "needs 3", "upgrade holdfast"]),
    (LogRewound("7:9:", "12"), ["7:9:", "12", "another server", "nothing is skipped", "holdfast doctor"]),
    (EngineRunning("/tmp/shop.db", "pid 7"), ["/tmp/shop.db", "pid 7", "stop it first"]),  # noqa: S108
    (LockTimeout("migration 3", "5s"), ["migration 3", "5s", "nothing was changed"]),
    (TerminalError("no such customer"), ["no such customer"]),
    (RetryAfter("5m", "busy"), ["5m", "busy"]),
    (Snooze(90), ["1m 30s"]),
    (Cancel("out of stock"), ["out of stock"]),
    (Outage("mail"), ["mail is unavailable"]),
    (CircuitOpen("acme", "5m"), ["acme", "5m"]),
    (CircuitOpen("acme", AT), ["acme", "2026-01-02T00:00:00+00:00"]),
]


def each_class() -> list[type[HoldfastError]]:
    found = (value for value in vars(errors).values() if inspect.isclass(value))
    return [cls for cls in found if issubclass(cls, HoldfastError)]


@pytest.mark.parametrize(("error", "words"), SAMPLES, ids=lambda value: type(value).__name__)
def test_a_message_names_the_facts_and_the_remedy(error: HoldfastError, words: list[str]) -> None:
    for word in words:
        assert word in str(error)


@pytest.mark.parametrize(("error", "words"), SAMPLES, ids=lambda value: type(value).__name__)
def test_every_error_survives_pickle_and_copy(error: HoldfastError, words: list[str]) -> None:
    error.add_note("seen on worker 3")
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):  # noqa: S301
        assert type(twin) is type(error)
        assert twin.args == error.args
        assert vars(twin) == vars(error)
        assert str(twin) == str(error)


def test_every_class_has_a_sample() -> None:
    # Exceptions are equal only to themselves, so the errors of a batch have their own test.
    abstract = {HoldfastError, Signal, BatchError}
    assert set(each_class()) - abstract == {type(error) for error, _ in SAMPLES}


def test_the_errors_of_a_batch_name_the_first_item_and_survive_pickle() -> None:
    error = BatchError({3: ValueError("no such user"), 5: Snooze(5)})
    assert str(error) == "2 items of the batch failed; item 3: ValueError: no such user"
    twin = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (str(twin), sorted(twin.errors)) == (str(error), [3, 5])


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn: list[tuple[str, str]] = []
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"    ([│├└─ ]*)(\w+)( |$)", line)
        if found:
            depth = len(found[1]) // 4
            above[depth:] = [found[2]]
            drawn.append((found[2], above[depth - 1] if depth else "Exception"))
    real = {(cls.__name__, next(base.__name__ for base in cls.__bases__ if issubclass(base, Exception)))
            for cls in each_class()}  # fmt: skip
    assert set(drawn) == real


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (InvalidDuration, ValueError),
        (InvalidName, ValueError),
        (InvalidPayload, ValueError),
        (PayloadTooLarge, ValueError),
        (InvalidKey, ValueError),
        (UnsupportedConnection, TypeError),
    ],
)
def test_errors_about_arguments_are_also_the_builtin_ones(cls: type, builtin: type) -> None:
    assert issubclass(cls, builtin)


class CardDeclined(TerminalError):
    """A user's own error with another constructor."""

    def __init__(self, card: int, *, bank: str) -> None:
        super().__init__(f"{bank} declined {card}")
        self.card = card


def test_a_subclass_with_its_own_constructor_survives_pickle() -> None:
    twin = pickle.loads(pickle.dumps(CardDeclined(7, bank="acme")))  # noqa: S301
    assert (twin.card, twin.reason, str(twin)) == (7, "acme declined 7", "acme declined 7")


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


@pytest.mark.parametrize("cls", [InvalidKey, lambda value, problem: InvalidName("queue", value, problem, "x")])
def test_a_strange_value_neither_breaks_the_message_nor_the_pickle(cls) -> None:
    error = cls(Unprintable(), "it is strange")
    assert "cannot be printed" in str(error)
    for strange in (Unprintable(), lambda: None, open):
        error = cls(strange, "it is strange")
        assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301


def test_facts_that_are_left_out_leave_no_gap() -> None:
    assert str(Refused("replay", "delivery 7", "in flight")) == "cannot replay delivery 7: it is in flight"
    assert "()" not in str(StoreUnavailable("sqlite:///x"))
    assert "()" not in str(EngineRunning("/srv/x"))
    assert str(RetryAfter(5)) == "retry after 5s"


def test_a_huge_value_is_not_repeated_in_the_message() -> None:
    assert len(str(InvalidKey("x" * 1_000_000, "too long"))) < 200


@pytest.mark.parametrize("delay", [-5, -1e300, float("-inf"), timedelta(days=-1)])
def test_a_negative_retry_after_means_now(delay) -> None:
    assert RetryAfter(delay).delay == timedelta(0)


@pytest.mark.parametrize("delay", [10**12, 10**400, 1e300, float("inf"), timedelta.max])
def test_an_absurd_retry_after_is_the_longest_there_is(delay) -> None:
    assert RetryAfter(delay).delay == timedelta(days=36_525)


@pytest.mark.parametrize("delay", [float("nan"), "soon", True, None])
def test_a_retry_after_that_is_no_duration_is_refused(delay) -> None:
    with pytest.raises(InvalidDuration, match="delay"):
        RetryAfter(delay)


@pytest.mark.parametrize("delay", [-1, float("inf"), 10**12])
def test_a_snooze_is_not_clamped_silently(delay) -> None:
    with pytest.raises(InvalidDuration):
        Snooze(delay)


def test_a_circuit_refuses_a_naive_time() -> None:
    with pytest.raises(ConfigurationError, match="naive"):
        CircuitOpen("acme", datetime(2026, 1, 1))  # noqa: DTZ001


def test_a_circuit_keeps_a_duration_as_timedelta() -> None:
    assert CircuitOpen("acme", "5m").until == timedelta(minutes=5)
    assert CircuitOpen("acme", AT).until == AT


def test_terminal_and_cancel_need_no_reason() -> None:
    assert (TerminalError().reason, Cancel().reason) == ("", "")
