"""What the middlewares of both server interfaces have in common."""

from typing import Generic, TypeVar, Unpack

from holdfast.idempotency.engine import IdempotencySettings, Required, ScopeOf, make_engine, options
from holdfast.idempotency.records import IdempotencyApp, Records

A = TypeVar("A")


class BaseMiddleware(Generic[A]):
    """The application, and the engine that handles its requests with a key."""

    def __init__(
        self,
        app: A,
        hf: IdempotencyApp | None = None,
        *,
        scope: ScopeOf,
        records: Records | None = None,
        required: Required = False,
        **settings: Unpack[IdempotencySettings],
    ) -> None:
        self.app = app
        self._engine = make_engine(hf, records, scope, options(**settings))
        self._scope_of, self._required = scope, required
