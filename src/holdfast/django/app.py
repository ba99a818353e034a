"""The `Holdfast` of a Django project: its store is a database alias, and calls join the open `atomic` block."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from django.apps import apps

from holdfast.app.holdfast import Holdfast
from holdfast.app.sync import SyncHoldfast
from holdfast.core.errors import HoldfastError
from holdfast.django.atomic import AtomicBlock
from holdfast.django.configuration import DjangoConfiguration, SettingsError, read_configuration
from holdfast.django.connection_cleanup import with_cleanup
from holdfast.django.connection_store import ConnectionStore
from holdfast.django.database import database_of, dsn_of, is_in_memory, uses_test_database
from holdfast.engine.handlers.handler import Handler
from holdfast.runtime.ambient_transaction import AMBIENT
from holdfast.runtime.runtime import Runtime
from holdfast.runtime.store_factory import generation_from_environment
from holdfast.stores.messages.publish import Published
from holdfast.stores.protocol import Store

_DATABASE_OPTIONS = frozenset(
    ("init_command", "isolation_level", "pool", "server_side_binding", "sslmode", "timeout", "transaction_mode")
)


class DjangoHoldfast(Holdfast):
    """A `Holdfast` on a database alias.

    Without `conn`, `publish`, `enqueue` and `start` join the open `transaction.atomic` block of the alias and commit or roll
    back with it; outside of a block they commit at once. `conn=None` always commits in a separate transaction.
    """

    sync: "DjangoSync"

    def __init__(self, configuration: DjangoConfiguration) -> None:
        super().__init__(
            configuration.dsn, schema=configuration.schema, source=configuration.source, **configuration.options
        )
        self.configuration = configuration
        self.sync = DjangoSync(lambda: self._runtime)
        self._ambient = AtomicBlock(lambda: configuration.database)
        self._functions: dict[Callable[..., Any], Callable[..., Any]] = {}
        self._binding = threading.RLock()
        self._bound_to: str | None = None
        self._given_store: Store | None = None

    @property
    def dsn(self) -> str:
        """The address of the alias's database, which is a test database while Django's test runner uses one."""
        return self._separate_dsn or dsn_of(database_of(self.configuration.database))

    @property
    def _separate_dsn(self) -> str | None:
        """A DSN that replaces the one of the alias. `HOLDFAST["DSN"]` names the real database, so tests ignore it."""
        given = self._dsn
        if given is not None and given == self.configuration.dsn and uses_test_database(self.configuration.database):
            return None
        return given

    @property
    def _runtime(self) -> Runtime:
        with self._binding:
            if self._given_store is None and (found := self._address()) != self._bound_to:
                # The first call, or the test runner has renamed the database since the last one.
                self._bound, self._bound_to = None, found
            runtime = super()._runtime
            if isinstance(runtime.store, ConnectionStore):
                # A database in memory, or a transaction that will be rolled back: nothing in it must be durable.
                runtime.producer.warns_of_durability = False
            return runtime

    def _address(self) -> str:
        if (dsn := self._separate_dsn) is not None:
            return dsn
        settings = database_of(self.configuration.database).settings_dict
        return "|".join(str(settings[name]) for name in ("ENGINE", "NAME", "HOST", "PORT", "USER"))

    @contextlib.contextmanager
    def on_store(self, store: Store) -> Iterator[None]:
        """Inside the block, the app uses this store. For tests."""
        before = self._bound, self._given_store
        self._bound, self._given_store = None, store
        try:
            yield
        finally:
            self._bound, self._given_store = before

    def release(self) -> None:
        """Closes the store's connections and forgets what is registered in it; the next use opens and registers again."""
        with self._binding:
            bound, self._bound, self._bound_to = self._bound, None, None
        if bound is not None:
            bound.completions.close()
            bound.store.close_sync()
        self._redactions.forget()
        self._breakers.invalidate()

    def _open_store(self, **options: Any) -> Store:
        if self._given_store is not None:
            return self._given_store
        if self._separate_dsn is None and is_in_memory(database_of(self.configuration.database)):
            return ConnectionStore(self.configuration.database, self.schema)
        return super()._open_store(**options)

    def _add(self, handler: Handler) -> None:
        function = handler.function
        if (
            not str(getattr(function, "__module__", "")).startswith("holdfast.")
            and function not in self._functions.values()
        ):
            handler = replace(handler, function=self._functions.setdefault(function, with_cleanup(function)))
        super()._add(handler)

    async def publish(
        self, event: object, payload: object = None, /, *, conn: Any = AMBIENT, **options: Any
    ) -> Published:
        """`Holdfast.publish`, in the open `atomic` block unless `conn` is given."""
        return await super().publish(event, payload, conn=conn, **options)

    async def publish_many(self, events: Sequence[object], *, conn: Any = AMBIENT, **options: Any) -> list[Published]:
        """`Holdfast.publish_many`, in the open `atomic` block unless `conn` is given."""
        return await super().publish_many(events, conn=conn, **options)


class DjangoSync(SyncHoldfast):
    """`hf.sync` of a Django project."""

    def publish(self, event: object, payload: object = None, /, *, conn: Any = AMBIENT, **options: Any) -> Published:
        """`SyncHoldfast.publish`, in the open `atomic` block unless `conn` is given."""
        return super().publish(event, payload, conn=conn, **options)

    def publish_many(self, events: Sequence[object], *, conn: Any = AMBIENT, **options: Any) -> list[Published]:
        """`SyncHoldfast.publish_many`, in the open `atomic` block unless `conn` is given."""
        return super().publish_many(events, conn=conn, **options)


@lru_cache(maxsize=1)
def project_app() -> DjangoHoldfast:
    """The app of this project, made from `settings.HOLDFAST` at its first use."""
    configuration = read_configuration()
    if apps.ready and not apps.is_installed("holdfast.django"):
        raise SettingsError(
            "'holdfast.django' is not in settings.INSTALLED_APPS; add it: it creates the tables, imports the handlers and "
            "checks the settings"
        )
    generation_from_environment()  # its error is not one of the options
    try:
        return DjangoHoldfast(configuration)
    except (TypeError, HoldfastError) as error:
        raise SettingsError(f"settings.HOLDFAST['OPTIONS'] cannot be used: {error}{_remedy(configuration)}") from error


def _remedy(configuration: DjangoConfiguration) -> str:
    """Where an option of the database belongs that was given to Holdfast."""
    misplaced = sorted(_DATABASE_OPTIONS & set(configuration.options))
    if not misplaced:
        return ""
    return f". {misplaced[0]!r} is an option of the database: write it into DATABASES[{configuration.database!r}]['OPTIONS']"
