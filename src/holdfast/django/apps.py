"""The Django app: imports the handlers of the project, creates the tables, and registers the system checks."""

from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.core.management import CommandError
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules

from holdfast.core.errors import HoldfastError, SchemaMismatch


class HoldfastConfig(AppConfig):
    """The app configuration of `"holdfast.django"` in `INSTALLED_APPS`."""

    name = "holdfast.django"
    label = "holdfast"
    verbose_name = "Holdfast"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from holdfast.django.checks import check_configuration, check_tables
        from holdfast.django.configuration import read_configuration

        checks.register(check_configuration, "holdfast")
        checks.register(check_tables, checks.Tags.database)
        post_migrate.connect(_create_tables, sender=self, dispatch_uid="holdfast.tables")
        try:
            modules = read_configuration().modules
        except HoldfastError:
            return  # `check_configuration` reports it
        autodiscover_modules(*modules)


def _create_tables(using: str, verbosity: int = 1, stdout: Any = None, **_: Any) -> None:
    """Creates or migrates the tables of Holdfast after `manage.py migrate`."""
    from holdfast.django import hf

    if using != hf.configuration.database or not hf.configuration.migrate:
        return
    try:
        applied = hf.store.migrate()
    except SchemaMismatch as error:
        raise CommandError(str(error)) from error
    if applied and verbosity and stdout is not None:
        stdout.write(f"  Holdfast: applied {len(applied)} migrations to {hf.store.name}\n")
