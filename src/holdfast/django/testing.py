"""Test support: runs what a test published and enqueued, inside the transaction of its `TestCase`."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import Any

import orjson
from asgiref.sync import async_to_sync, sync_to_async

from holdfast.app.jobs.job import Job
from holdfast.core.errors import ConfigurationError
from holdfast.core.message import Message
from holdfast.django.app import DjangoHoldfast, project_app
from holdfast.django.connection_store import ConnectionStore
from holdfast.django.database import database_of, is_in_memory, uses_test_database
from holdfast.django.test_database import empty_tables
from holdfast.engine.worker.options import WorkerOptions
from holdfast.testing.harness import Harness


def run_deliveries(app: DjangoHoldfast | None = None, *, advance: bool = True) -> None:
    """Runs all deliveries to their end, through their retry delays, in the open transaction of the test.

    A real worker calls the handlers one after the other. They see what the test wrote, the test sees what they wrote, and
    all of it is rolled back with the test. It works in a `TestCase` and in a `TransactionTestCase`.

    Deferred deliveries run too, because the clock is advanced to them. `advance=False` runs only what is due now, and
    leaves retries and deferred calls pending.

    Outside of a test database it raises `ConfigurationError` and runs nothing.
    """
    with _harness(app, "run_deliveries") as harness:
        async_to_sync(harness.drain if advance else harness.run_due)()


@contextlib.contextmanager
def transaction_harness(app: DjangoHoldfast | None = None) -> Iterator["TransactionHarness"]:
    """The harness of `holdfast.testing` on the connection of this thread: assertions, injected failures, a clock.

    Inside the block, `run_deliveries()` runs what it prepared. Outside of a test database it raises `ConfigurationError`.
    """
    with _harness(app, "transaction_harness") as harness:
        yield harness


def delete_everything(app: DjangoHoldfast | None = None) -> None:
    """Deletes everything that Holdfast stores in the test database, as Django's flush after a `TransactionTestCase` does.

    Outside of a test database it raises `ConfigurationError` and deletes nothing.
    """
    app = app or project_app()
    _check_test_database(app.configuration.database, "delete_everything")
    empty_tables(app)


class TransactionHarness(Harness):
    """A `Harness` in the transaction of a test. Its assertions also take tasks of Django."""

    def assert_enqueued(self, job: Any, **arguments: object) -> Message:
        """Fails unless the job or the task of Django was enqueued with these arguments; returns the newest."""
        if isinstance(job, Job):
            return super().assert_enqueued(job, **arguments)
        if not hasattr(job, "module_path"):
            raise TypeError(
                f"assert_enqueued() takes a job or a task of Django, not {job!r}; for a name use assert_published('job.NAME')"
            )
        from holdfast.django.task_backend.declared_task import consumer_name

        calls = self.published(f"job.{consumer_name(job.module_path)}")
        for message in calls:
            found = _arguments(job, message)
            if all(name in found and found[name] == value for name, value in arguments.items()):
                return message
        seen = "\n  ".join(str(_arguments(job, message)) for message in calls[:20]) or "nothing at all"
        raise AssertionError(
            f"task {job.module_path} with {arguments} was not enqueued. Its newest calls are:\n  {seen}"
        )

    async def run_due(self) -> None:
        """Runs the deliveries that are due now, and does not advance the clock."""
        options = WorkerOptions(until_idle=True, idle_limit=timedelta(0), cron=False, poll=timedelta(milliseconds=5))
        await self.app.work(options)


def _arguments(task: Any, message: Message) -> dict[str, Any]:
    """The arguments of a stored call of a task, by name."""
    stored = orjson.loads(message.payload)
    context = (None,) if task.takes_context else ()
    bound = inspect.signature(task.func).bind_partial(*context, *stored["args"], **stored["kwargs"]).arguments
    named = dict(list(bound.items())[len(context) :])
    return {**named, **stored["kwargs"]}


@contextlib.contextmanager
def _harness(app: DjangoHoldfast | None, call: str) -> Iterator[TransactionHarness]:
    app = app or project_app()
    _check_test_database(app.configuration.database, call)
    store = ConnectionStore(app.configuration.database, app.schema)
    handlers = dict(app.handlers)
    with app.on_store(store):
        for name, handler in handlers.items():
            if not handler.is_async:
                app.handlers[name] = replace(handler, function=_in_test_thread(handler.function, store))
        try:
            yield TransactionHarness(app)
        finally:
            app.handlers.update(handlers)


def _check_test_database(alias: str, call: str) -> None:
    """Raises `ConfigurationError` if handlers would run on the real database, where deferred work would run too early."""
    database = database_of(alias)
    if not uses_test_database(alias) and not is_in_memory(database):
        raise ConfigurationError(
            f"{call}() runs only on a test database, and {database.settings_dict['NAME']} is the database of the project; "
            f"call it in a test that `manage.py test` or pytest-django runs, with {alias!r} in the `databases` of its class "
            "and 'holdfast.django' in INSTALLED_APPS"
        )


def _in_test_thread(function: Callable[..., Any], store: ConnectionStore) -> Callable[..., Any]:
    """The function, called in the thread of the test, which has the connection with the transaction."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with store.shared():
            return function(*args, **kwargs)

    @functools.wraps(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return await sync_to_async(call, thread_sensitive=True)(*args, **kwargs)
        except BaseException as error:
            # Without the frames of the change of threads, so that a logged traceback shows the handler.
            error.__traceback__ = _frames_after(error.__traceback__, call)
            raise

    return run


def _frames_after(found: TracebackType | None, function: Any) -> TracebackType | None:
    last = found
    while last is not None and last.tb_frame.f_code is not function.__code__:
        last = last.tb_next
    return found if last is None else last.tb_next
