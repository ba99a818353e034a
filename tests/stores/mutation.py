"""Mutations: one text replaced in a statement, a fragment, or a function or trigger that a migration made."""

import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import psycopg
import pytest

from holdfast.stores.statement import Statement
from tests.support.builders import sql

Scenario = Callable[[Any], Awaitable[None]]
_FAILS = (AssertionError, pytest.fail.Exception)
_COLLIDES = (*_FAILS, psycopg.errors.UniqueViolation, psycopg.errors.CheckViolation, sqlite3.IntegrityError)


@dataclass(frozen=True)
class Mutant:
    """On one kind of store, in `where`, the text `guard` becomes `left`; then the scenario fails with one of `errors`."""

    database: str
    where: str
    guard: str
    left: str = "true"
    scenario: Scenario | None = None
    errors: tuple[type[BaseException], ...] = _FAILS

    def __str__(self) -> str:
        return f"{self.database}-{self.where}-{' '.join(self.guard.split())}"


postgres = partial(Mutant, "postgres")
sqlite = partial(Mutant, "sqlite")


def kills(scenario: Scenario, *mutants: Mutant) -> list[Mutant]:
    return [replace(mutant, scenario=scenario) for mutant in mutants]


def collides(scenario: Scenario, *mutants: Mutant) -> list[Mutant]:
    """As `kills`, but the database itself may refuse what the guard would have left out."""
    return [replace(mutant, scenario=scenario, errors=_COLLIDES) for mutant in mutants]


@contextmanager
def applied(store: Any, mutant: Mutant) -> Iterator[None]:
    """The store with the mutation in it, and as it was afterwards."""
    kind, _, name = mutant.where.rpartition(" ")
    if kind == "function":
        ((original,),) = sql(store, f"select pg_get_functiondef(oid) from pg_proc where proname = '{name}'")
        with _replaced(mutant, str(original), lambda text: sql(store, text)):
            yield
    elif kind == "trigger":
        trigger = f"{store.dialect.prefix}{name}"
        ((original,),) = sql(store, f"select sql from sqlite_master where name = '{trigger}'")
        with _replaced(mutant, str(original), lambda text: (sql(store, f"drop trigger {trigger}"), sql(store, text))):
            yield
    else:
        statements = store.dialect.statements
        kept = statements._statements, statements._fragments
        if name in kept[0]:
            statements._statements = {**kept[0], name: _mutated(kept[0][name], mutant)}
        else:
            statements._fragments = {**kept[1], name: _cut(mutant, kept[1][name])}
        yield


@contextmanager
def _replaced(mutant: Mutant, original: str, write: Callable[[str], object]) -> Iterator[None]:
    write(_cut(mutant, original))
    try:
        yield
    finally:
        write(original)


def _mutated(statement: Statement, mutant: Mutant) -> Statement:
    texts = [text for step in statement.steps for text in step.statements]
    (changed,) = [text for text in texts if mutant.guard in text]
    cut = _cut(mutant, changed)
    return replace(
        statement,
        steps=tuple(
            replace(step, statements=tuple(cut if text is changed else text for text in step.statements))
            for step in statement.steps
        ),
    )


def _cut(mutant: Mutant, text: str) -> str:
    assert text.count(mutant.guard) == 1, f"{mutant}: the guard must be there exactly once"
    return text.replace(mutant.guard, mutant.left)
