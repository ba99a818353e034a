"""What this app declared secret, and what the store knows beside it."""

from collections.abc import Iterable
from datetime import timedelta

from holdfast.core.errors import ConfigurationError
from holdfast.core.events.pattern import ANY
from holdfast.core.redaction.redact import Redaction, Redactor, check_redaction
from holdfast.stores.admin.redaction import redactions
from holdfast.stores.protocol import Store


class DeclaredRedactions:
    """Knows what is secret: what the app declares as a whole, its events as they turn up, other apps' by the store."""

    def __init__(self, paths: Iterable[str] = ()) -> None:
        if isinstance(paths, str):
            raise ConfigurationError(f"redact is a text; give a list of fields, such as [{paths!r}]")
        self.own = frozenset(check_redaction(ANY, path) for path in paths)
        self.redactor = Redactor(self.own)
        self._stored: frozenset[Redaction] = frozenset()

    @property
    def stored(self) -> bool:
        """Whether the store knows all of it, as far as this process knows."""
        return self.own <= self._stored

    def add(self, declared: Iterable[Redaction]) -> None:
        """An event of the app turned up that declares these."""
        if not self.own.issuperset(declared := tuple(declared)):
            self.own = self.own.union(declared)
            self.redactor = Redactor(self.redactor.declared | self.own)

    def learn(self, found: frozenset[Redaction]) -> None:
        """These are in the store."""
        self._stored |= found
        if not found <= self.redactor.declared:
            self.redactor = Redactor(self.own | self._stored)

    def forget(self) -> None:
        """The app moved to another store."""
        self._stored = frozenset()


class RedactionRefresher:
    """A worker's duty: other apps declare, too, and their events come here."""

    interval = timedelta(seconds=30)

    def __init__(self, store: Store, secrets: DeclaredRedactions) -> None:
        self._store, self._redactions = store, secrets

    async def perform(self, worker: str) -> None:
        self._redactions.learn(await self._store.run(redactions()))
