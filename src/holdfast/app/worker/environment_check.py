"""Warns about a HOLDFAST_DSN that names another store than the one of the app."""

import os

from holdfast._log import get_logger
from holdfast.core.errors import ConfigurationError
from holdfast.core.redaction.mask import mask
from holdfast.runtime.store_factory import open_store
from holdfast.stores.protocol import Store

log = get_logger("holdfast.worker")


def warn_about_environment(store: Store) -> None:
    """Logs a warning if HOLDFAST_DSN names another store: this worker uses its app's, the operator commands that one."""
    given = os.environ.get("HOLDFAST_DSN")
    if not given or (named := _name(given)) == store.name:
        return
    log.warning(
        "environment store ignored",
        store=store.name,
        environment=named,
        hint="the app sets its store itself, and commands such as `holdfast stats` use HOLDFAST_DSN; create the app with "
        "Holdfast() so that both use HOLDFAST_DSN, or unset it",
    )


def _name(dsn: str) -> str:
    """The store of a DSN without user and password, as the store itself shows it. Nothing is connected."""
    try:
        return open_store(dsn).name
    except ConfigurationError:
        return mask(dsn)
