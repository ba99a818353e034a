"""Drivers for generators that yield requests and receive results, so that one implementation serves async and blocking callers."""

from collections.abc import Awaitable, Callable, Generator
from typing import TypeVar

Request = TypeVar("Request")
Result = TypeVar("Result")
Returned = TypeVar("Returned")

Step = TypeVar("Step")
Answer = TypeVar("Answer")

Errors = type[BaseException] | tuple[type[BaseException], ...]


def drive(
    steps: Generator[Request, Result, Returned], perform: Callable[[Request], Result], throw: Errors = ()
) -> Returned:
    """Runs a generator to its end: performs each request that it yields and sends the result back.

    An error of a type in `throw` is raised inside the generator, which may handle it; any other error ends the run.
    The generator is closed in every case.

    >>> def total():
    ...     return (yield 2) + (yield 3)
    >>> drive(total(), lambda number: number * 10)
    50
    """
    try:
        request = next(steps)
        while True:
            try:
                result = perform(request)
            except throw as error:
                request = steps.throw(error)
            else:
                request = steps.send(result)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        steps.close()


async def drive_async(
    steps: Generator[Request, Result, Returned], perform: Callable[[Request], Awaitable[Result]], throw: Errors = ()
) -> Returned:
    """`drive` for a `perform` whose result is awaited."""
    try:
        request = next(steps)
        while True:
            try:
                result = await perform(request)
            except throw as error:
                request = steps.throw(error)
            else:
                request = steps.send(result)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        steps.close()


def expand(
    steps: Generator[Request, Result, Returned],
    replace: Callable[[Request], Generator[Step, Answer, Result]],
    translate: Callable[[Exception, Request], Exception | None],
) -> Generator[Step, Answer, Returned]:
    """Replaces each request of a generator with the requests of another generator, whose result is sent back.

    An error during a request is converted by `translate`; if that returns None, the error is raised unchanged.
    """
    try:
        request = next(steps)
        while True:
            try:
                result = yield from replace(request)
            except Exception as error:
                if translated := translate(error, request):
                    raise translated from error
                raise
            request = steps.send(result)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        steps.close()
