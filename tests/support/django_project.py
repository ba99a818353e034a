"""Django's settings for the tests of this process: they can be configured once."""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

DJANGO_APPS = [
    "holdfast.django",
    *(f"django.contrib.{name}" for name in ("admin", "auth", "contenttypes", "messages", "sessions")),
]


def configure_django() -> None:
    """Configures Django without databases; `set_database` adds them."""
    import django
    from django.conf import settings

    if not settings.configured:
        settings.configure(
            DATABASES={},
            USE_TZ=True,
            INSTALLED_APPS=DJANGO_APPS,
            SECRET_KEY="tests",
            ROOT_URLCONF="tests.django.urls",
            TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}],
        )
        django.setup()


def set_database(alias: str, dsn: str, **settings: Any) -> None:
    """Makes the database of a DSN known to Django under this alias, with Django's defaults."""
    from django.db import connections

    configured = connections.configure_settings({"default": {}, alias: {**database_settings(dsn), **settings}})
    connections.settings[alias] = configured[alias]
    if hasattr(connections._connections, alias):
        connections[alias].close()
        del connections[alias]


def database_settings(dsn: str) -> dict[str, Any]:
    """An entry of `DATABASES`."""
    split = urlsplit(dsn)
    if split.scheme == "sqlite":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(Path(split.path[1:]))}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": split.path[1:],
        "USER": split.username or "",
        "HOST": split.hostname or "",
        "PORT": str(split.port or ""),
    }
