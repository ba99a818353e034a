"""`settings.HOLDFAST`, checked when it is read."""

import difflib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from django.core.management.base import CommandError

from holdfast.app.holdfast import Holdfast
from holdfast.core.errors import ConfigurationError, HoldfastError
from holdfast.core.values.names import check_name, check_schema
from holdfast.runtime.store_factory import check_dsn

_DEFAULT_ALIAS = "default"


class SettingsError(ConfigurationError, CommandError):
    """`settings.HOLDFAST` or `settings.TASKS` cannot be used. A management command prints it as one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DjangoConfiguration:
    """The values of `settings.HOLDFAST`; each key is the upper-case name of a field.

    The store is the database of the alias `database`, unless `dsn` is given. `manage.py migrate` creates
    the tables unless `migrate` is False. `modules` are imported from every installed app at start-up. `options` are passed
    to `Holdfast`. `console_url` is where the web console is served.
    """

    database: str = _DEFAULT_ALIAS
    dsn: str | None = None
    schema: str = "holdfast"
    source: str = "app"
    migrate: bool = True
    modules: tuple[str, ...] = ("handlers", "jobs", "tasks")
    console_url: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def read_configuration(given: object = None) -> DjangoConfiguration:
    """The configuration in `settings.HOLDFAST`; raises `SettingsError` with the key and the remedy."""
    if given is None:
        from django.conf import settings

        given = getattr(settings, "HOLDFAST", {})
    if not isinstance(given, Mapping):
        raise SettingsError(
            f"settings.HOLDFAST is of type {type(given).__name__}; give a dict such as {{'SOURCE': 'shop'}}, or leave it out"
        )
    known = {one.name.upper(): one.name for one in fields(DjangoConfiguration)}
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name).upper(), known, n=1)
            hint = f"did you mean {near[0]!r}? It" if near else "it"
            option = str(name).lower()
            if option in inspect.signature(Holdfast).parameters:
                hint = f"write 'OPTIONS': {{{option!r}: ...}}. It"
            raise SettingsError(f"settings.HOLDFAST has no key {name!r}; {hint} takes {', '.join(sorted(known))}")
    configuration = DjangoConfiguration(**{known[name]: value for name, value in given.items()})
    _check(configuration)
    return configuration


def _check(one: Any) -> None:
    for name in ("database", "schema", "source"):
        if not isinstance(getattr(one, name), str):
            _refuse(name, getattr(one, name), "give text")
    if one.dsn is not None and not isinstance(one.dsn, str):
        _refuse("dsn", type(one.dsn).__name__, "give text, or leave it out to use the database of the alias")
    for name, check in (("schema", check_schema), ("source", partial(check_name, "source")), ("dsn", check_dsn)):
        try:
            if getattr(one, name) is not None:
                check(getattr(one, name))
        except HoldfastError as error:
            raise SettingsError(f"settings.HOLDFAST[{name.upper()!r}] is invalid: {error}") from error
    if not isinstance(one.migrate, bool):
        _refuse("migrate", one.migrate, "give True or False")
    if not isinstance(one.modules, list | tuple) or not all(isinstance(name, str) for name in one.modules):
        _refuse("modules", one.modules, "give a list of module names, such as ['jobs']")
    if not isinstance(one.options, Mapping):
        _refuse("options", one.options, "give a dict of options of Holdfast, such as {'keep': '7d'}")
    if not all(isinstance(name, str) for name in one.options):
        _refuse("options", one.options, "give the names of options as text, such as {'keep': '7d'}")
    if taken := sorted({"dsn", "schema", "source"} & set(one.options)):
        _refuse("options", sorted(one.options), f"give {taken[0].upper()!r} as a key of HOLDFAST itself")
    if one.console_url is not None and (
        not isinstance(one.console_url, str) or urlsplit(one.console_url).scheme not in ("http", "https", "")
    ):
        _refuse(
            "console_url",
            one.console_url,
            "give the address of the console, such as 'https://ops.example.com/holdfast'",
        )


def _refuse(name: str, value: object, remedy: str) -> None:
    raise SettingsError(f"settings.HOLDFAST[{name.upper()!r}] is {value!r}; {remedy}")
