"""Generators are driven to their end, blocking and async, with errors where they belong."""

import asyncio
from collections.abc import Generator

import pytest

from holdfast.core.drive import drive, drive_async, expand


def sums(log: list[object]) -> Generator[int, int, int]:
    total = 0
    try:
        for number in (1, 2, 3):
            try:
                total += yield number
            except ValueError as error:
                log.append(str(error))
        return total
    finally:
        log.append("closed")


def double(number: int) -> int:
    if number == 2:
        raise ValueError("two")
    return number * 2


async def double_later(number: int) -> int:
    await asyncio.sleep(0)
    return double(number)


async def test_an_error_that_the_generator_handles_is_raised_inside_it() -> None:
    blocking: list[object] = []
    awaited: list[object] = []
    assert drive(sums(blocking), double, ValueError) == 8
    assert await drive_async(sums(awaited), double_later, ValueError) == 8
    assert blocking == awaited == ["two", "closed"]


async def test_any_other_error_ends_the_run_and_closes_the_generator() -> None:
    blocking: list[object] = []
    awaited: list[object] = []
    with pytest.raises(ValueError, match="two"):
        drive(sums(blocking), double)
    with pytest.raises(ValueError, match="two"):
        await drive_async(sums(awaited), double_later)
    assert blocking == awaited == ["closed"]


async def test_a_cancelled_run_closes_the_generator() -> None:
    log: list[object] = []
    run = asyncio.create_task(drive_async(sums(log), lambda _: asyncio.Event().wait(), ValueError))
    await asyncio.sleep(0)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert log == ["closed"]


def halves(number: int) -> Generator[str, int, int]:
    return (yield f"{number}a") + (yield f"{number}b")


def test_each_request_is_replaced_by_the_requests_of_another_generator() -> None:
    asked: list[str] = []

    def perform(request: str) -> int:
        asked.append(request)
        return 10

    assert drive(expand(sums([]), halves, lambda error, request: None), perform) == 60
    assert asked == ["1a", "1b", "2a", "2b", "3a", "3b"]


def test_an_error_is_translated_for_the_request_in_which_it_occurred() -> None:
    log: list[object] = []

    def perform(request: str) -> int:
        if request == "2a":
            raise KeyError(request)
        return 10

    with pytest.raises(LookupError, match="request 2") as raised:
        drive(expand(sums(log), halves, lambda _, request: LookupError(f"request {request}")), perform, Exception)
    assert isinstance(raised.value.__cause__, KeyError)
    assert log == ["closed"]
