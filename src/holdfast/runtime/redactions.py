"""The redactions that this app declares, and those that the store holds."""

from collections.abc import Iterable
from datetime import timedelta

from holdfast.core.errors import ConfigurationError
from holdfast.core.events.pattern import ANY
from holdfast.core.redaction.redact import Redaction, Redactor, check_redaction
from holdfast.stores.admin.redaction import redactions
from holdfast.stores.protocol import Store


class DeclaredRedactions:
    """The redactions of the app, of its event classes as they are first used, and those of other apps, read from the store."""

    def __init__(self, paths: Iterable[str] = ()) -> None:
        if isinstance(paths, str):
            raise ConfigurationError(f"redact is a string; give a list of fields, such as [{paths!r}]")
        self.own = frozenset(check_redaction(ANY, path) for path in paths)
        self.redactor = Redactor(self.own)
        self._stored: frozenset[Redaction] = frozenset()

    @property
    def stored(self) -> bool:
        """Whether all redactions of this app are stored, as far as this process knows."""
        return self.own <= self._stored

    def add(self, declared: Iterable[Redaction]) -> None:
        """Adds the redactions of an event class."""
        if not self.own.issuperset(declared := tuple(declared)):
            self.own = self.own.union(declared)
            self.redactor = Redactor(self.redactor.declared | self.own)

    def learn(self, found: frozenset[Redaction]) -> None:
        """Adds redactions that are stored."""
        self._stored |= found
        if not found <= self.redactor.declared:
            self.redactor = Redactor(self.own | self._stored)

    def forget(self) -> None:
        """Clears the record of stored redactions, because the app now uses another store."""
        self._stored = frozenset()


class RedactionRefresher:
    """Reads the redactions of other apps, whose events this worker may run."""

    interval = timedelta(seconds=30)

    def __init__(self, store: Store, redactions: DeclaredRedactions) -> None:
        self._store, self._redactions = store, redactions

    async def perform(self, worker: str) -> None:
        self._redactions.learn(await self._store.run(redactions()))
