"""An app on a fresh database, and everything that is logged, as the engine's tests have them."""

from tests.support.apps import dsn, log, make_app, postgres16_dsn, postgres18_dsn, sqlite_dsn

__all__ = ["dsn", "log", "make_app", "postgres16_dsn", "postgres18_dsn", "sqlite_dsn"]
