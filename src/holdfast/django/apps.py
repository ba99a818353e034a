"""The Django app: imports the handlers of the project, creates the tables, and registers the system checks."""

import sys
from pathlib import Path
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core import checks
from django.core.management import CommandError
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules

from holdfast.core.errors import SchemaMismatch
from holdfast.django.configuration import SettingsError, read_configuration

_MANAGEMENT = ("manage.py", "django-admin", "django-admin.py")


class HoldfastConfig(AppConfig):
    """The app configuration of `"holdfast.django"` in `INSTALLED_APPS`."""

    name = "holdfast.django"
    label = "holdfast"
    verbose_name = "Holdfast"
    default_auto_field = "django.db.models.BigAutoField"
    problem: SettingsError | None = None
    """Why the handlers of the project are not imported, for the system check and `manage.py holdfast`."""

    def ready(self) -> None:
        from holdfast.django.checks import check_configuration, check_tables
        from holdfast.django.test_database import release_before_drop

        self.names_at_start = {alias: str(one.get("NAME", "")) for alias, one in settings.DATABASES.items()}
        """The names of the databases, which Django's test runner replaces."""
        checks.register(check_configuration, "holdfast")
        checks.register(check_tables, checks.Tags.database)
        post_migrate.connect(_create_tables, sender=self, dispatch_uid="holdfast.tables")
        connection_created.connect(release_before_drop, dispatch_uid="holdfast.release")
        try:
            autodiscover_modules(*read_configuration().modules)
        except SettingsError as error:
            if not _is_management_command():
                raise
            # An error here would be a long traceback of Django's start-up; the check reports it in one line.
            self.problem = error


def _is_management_command() -> bool:
    started = Path(sys.argv[0])
    return started.name in _MANAGEMENT or started.parts[-2:] == ("django", "__main__.py")


def _create_tables(using: str, verbosity: int = 1, stdout: Any = None, **signal: Any) -> None:
    """Creates or migrates the tables of Holdfast after `manage.py migrate`; empties them after a flush of a test database."""
    from holdfast.django import hf
    from holdfast.django.database import uses_test_database
    from holdfast.django.test_database import empty_tables

    if using != hf.configuration.database:
        return
    if "plan" not in signal and uses_test_database(
        using
    ):  # `flush` after a TransactionTestCase; only `migrate` has a plan
        empty_tables(hf)
        return
    if not hf.configuration.migrate:
        return
    try:
        applied = hf.store.migrate()
    except SchemaMismatch as error:
        raise CommandError(str(error)) from error
    if applied and verbosity and stdout is not None:
        stdout.write(f"  Holdfast: applied {len(applied)} migrations to {hf.store.name}\n")
