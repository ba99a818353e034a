"""Every exception Holdfast raises, in one tree.

::

    HoldfastError
    ├── ConfigurationError            a setting or a declaration is wrong; fix the code
    │   └── InvalidDuration           (also ValueError)
    ├── InvalidName                   (also ValueError) a queue, consumer, source, schema, type …
    ├── InvalidPayload                (also ValueError) `.path` is the position
    │   ├── PayloadTooLarge
    │   └── UnreadableRecord          a broker record cannot be converted to a message
    ├── InvalidKey                    (also ValueError)
    │   └── KeyRequired               a request has no idempotency key, and one is required
    ├── KeyConflict                   one key, two different contents
    ├── EncryptionKeyMissing          stored data is encrypted with a key that this process does not have
    ├── DecryptionFailed              stored data was changed or copied, or its key has another value
    ├── UnsupportedConnection         (also TypeError)
    │   └── WrongDatabase
    ├── NoTransaction                 the connection is in autocommit mode
    ├── NotFound
    ├── LeaseLost                     another worker owns the claim now
    │   └── AlreadyCompleted          this run has completed its delivery before
    ├── ReservationLost               another request owns the idempotency key now
    ├── RebuildLost                   another process owns the rebuild now
    ├── RebuildStopped                the handler cannot apply an event during a rebuild
    ├── AlreadyHandled                the effect was already applied; roll back
    ├── JobFailed                     the job is a dead letter or was cancelled, so it has no result
    ├── WorkflowFailed                the run has failed or was cancelled, so it has no result
    ├── Refused                       the state of the item does not allow an operator action
    ├── ServiceRefused                a service answered a call with an error status
    ├── AddressRefused                a webhook URL resolves to an address that must not be called
    ├── WebhookRefused                a webhook receiver answered with an error status
    ├── InvalidSignature              (also ValueError) a received webhook is not authentic
    ├── BrokerUnavailable             a broker cannot be reached, or did not confirm
    ├── StoreError
    │   ├── StoreUnavailable
    │   │   ├── EngineStopping        SQLite: child processes of a killed engine still run
    │   │   ├── StoreLocked           SQLite: another connection holds a lock
    │   │   └── StoreTimeout          PostgreSQL: a time limit of the role or database cancelled a statement
    │   ├── PermissionDenied          PostgreSQL: the role lacks a grant
    │   ├── StoreReplaced             SQLite: the file was deleted or replaced while it was open
    │   ├── StoreBusy                 SQLite: a read snapshot cannot become a write
    │   ├── TransactionConflict       PostgreSQL: the caller's snapshot is too old; run the transaction again
    │   ├── SchemaMismatch
    │   ├── LogRewound                PostgreSQL: the event store was restored on another server
    │   ├── EngineRunning             a second engine on one SQLite file
    │   └── LockTimeout               a migration could not acquire its lock
    ├── BatchError                    some items of a batch failed
    └── Signal                        a handler may raise *or* return it
        ├── TerminalError             dead letter now
        ├── RetryAfter                retry after a delay, within limits
        ├── Snooze                    run again later, not a failure
        ├── Cancel                    discard, no alert
        ├── Outage                    your own infrastructure is unavailable: block
        └── CircuitOpen               a dependency is unavailable: park

A constructor takes facts, and the class builds the message: what happened, to which item, what to do next. The facts
are attributes. Every error can be pickled and copied, including subclasses with another constructor.
"""

from holdfast.core.errors.connection import NoTransaction, UnsupportedConnection, WrongDatabase
from holdfast.core.errors.encryption import DecryptionFailed, EncryptionKeyMissing
from holdfast.core.errors.operation import JobFailed, NotFound, Refused, WorkflowFailed
from holdfast.core.errors.ownership import (
    AlreadyCompleted,
    AlreadyHandled,
    LeaseLost,
    RebuildLost,
    RebuildStopped,
    ReservationLost,
)
from holdfast.core.errors.remote import (
    AddressRefused,
    BrokerUnavailable,
    InvalidSignature,
    ServiceRefused,
    WebhookRefused,
)
from holdfast.core.errors.root import HoldfastError
from holdfast.core.errors.signals import (
    BatchError,
    Cancel,
    CircuitOpen,
    Outage,
    RetryAfter,
    Signal,
    Snooze,
    TerminalError,
)
from holdfast.core.errors.store import (
    EngineRunning,
    EngineStopping,
    LockTimeout,
    LogRewound,
    PermissionDenied,
    SchemaMismatch,
    StoreBusy,
    StoreError,
    StoreLocked,
    StoreReplaced,
    StoreTimeout,
    StoreUnavailable,
    TransactionConflict,
)
from holdfast.core.errors.validation import (
    ConfigurationError,
    InvalidDuration,
    InvalidKey,
    InvalidName,
    InvalidPayload,
    KeyConflict,
    KeyRequired,
    PayloadTooLarge,
    UnreadableRecord,
)

__all__ = [
    "AddressRefused",
    "AlreadyCompleted",
    "AlreadyHandled",
    "BatchError",
    "BrokerUnavailable",
    "Cancel",
    "CircuitOpen",
    "ConfigurationError",
    "DecryptionFailed",
    "EncryptionKeyMissing",
    "EngineRunning",
    "EngineStopping",
    "HoldfastError",
    "InvalidDuration",
    "InvalidKey",
    "InvalidName",
    "InvalidPayload",
    "InvalidSignature",
    "JobFailed",
    "KeyConflict",
    "KeyRequired",
    "LeaseLost",
    "LockTimeout",
    "LogRewound",
    "NoTransaction",
    "NotFound",
    "Outage",
    "PayloadTooLarge",
    "PermissionDenied",
    "RebuildLost",
    "RebuildStopped",
    "Refused",
    "ReservationLost",
    "RetryAfter",
    "SchemaMismatch",
    "ServiceRefused",
    "Signal",
    "Snooze",
    "StoreBusy",
    "StoreError",
    "StoreLocked",
    "StoreReplaced",
    "StoreTimeout",
    "StoreUnavailable",
    "TerminalError",
    "TransactionConflict",
    "UnreadableRecord",
    "UnsupportedConnection",
    "WebhookRefused",
    "WorkflowFailed",
    "WrongDatabase",
]

# Tracebacks and the store show the name by which users import a class. The store groups failures by it, so it never changes.
for _name in __all__:
    globals()[_name].__module__ = "holdfast"
del _name
