"""Warns about a HOLDFAST_DSN that names another store than the one of the app."""

import os

from holdfast._log import get_logger
from holdfast.core.errors import ConfigurationError
from holdfast.core.redaction.mask import mask
from holdfast.runtime.store_factory import is_embedded, open_store
from holdfast.stores.protocol import Store

log = get_logger("holdfast.worker")


def warn_about_environment(store: Store) -> None:
    """Logs a warning if HOLDFAST_DSN names another store: this worker uses its app's, the operator commands that one."""
    given = os.environ.get("HOLDFAST_DSN")
    if not given or (named := _other(given, store)) is None:
        return
    log.warning(
        "environment store ignored",
        store=store.name,
        environment=named,
        hint="the app sets its store itself, and commands such as `holdfast stats` use HOLDFAST_DSN; create the app with "
        "Holdfast() so that both use HOLDFAST_DSN, or unset it",
    )


def _other(dsn: str, store: Store) -> str | None:
    """The store of a DSN without user and password, or None if it is the given one. Nothing is connected."""
    try:
        named = open_store(dsn)
    except (ConfigurationError, ValueError):  # also of an address that cannot be split
        return mask(dsn)
    if is_embedded(named) and is_embedded(store) and named.path == store.path:
        return None
    return None if named.name == store.name else named.name
