"""Which exception is which kind of failure: the lists of handlers and apps, classify functions, what is built in."""

from datetime import UTC, datetime, timedelta

import pytest
from pydantic import BaseModel

from holdfast import Holdfast, RetryPolicy, Verdict
from holdfast.core.delivery import Status
from tests.support.apps import MakeApp
from tests.support.worker import drain, only, run_records, statuses

AT_ONCE = RetryPolicy.fixed(0, attempts=3)


class CardDeclined(Exception): ...


class LookupFailed(KeyError): ...


class CacheDown(Exception):
    resource = "cache"


class HTTPError(Exception):
    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        super().__init__(f"answered {status}")
        self.status_code, self.headers = status, headers or {}


async def test_a_class_named_dead_is_dead_at_once(hf: Holdfast) -> None:
    @hf.job(retry=AT_ONCE, dead_on=(CardDeclined,))
    async def charge() -> None:
        raise CardDeclined("no money")

    await charge.enqueue()
    await drain(hf)
    assert ((await only(hf)).attempts, await statuses(hf)) == (1, [Status.FAILED])


async def test_the_nearest_class_wins(hf: Holdfast) -> None:
    @hf.job(retry=AT_ONCE, dead_on=(LookupError,), retry_on=(KeyError,))
    async def look() -> None:
        raise LookupFailed("x")

    await look.enqueue()
    await drain(hf)
    assert (await only(hf)).attempts == 3


async def test_a_handlers_list_comes_before_the_apps_and_both_before_what_is_built_in(make_app: MakeApp) -> None:
    hf = make_app(dead_on=(CardDeclined, OSError))

    @hf.job(retry=AT_ONCE, retry_on=(CardDeclined,))
    async def charge() -> None:
        raise CardDeclined("handler says retry, app says dead")

    @hf.job(retry=AT_ONCE)
    async def fetch() -> None:
        raise OSError("app says dead, built in is retry")

    await charge.enqueue()
    await fetch.enqueue()
    await drain(hf)
    assert (await only(hf, "charge")).attempts == 3
    assert (await only(hf, "fetch")).attempts == 1


async def test_a_classify_function_is_asked_first(make_app: MakeApp) -> None:
    def by_text(error: BaseException) -> Verdict | None:
        return Verdict.dead() if "void" in str(error) else None

    hf = make_app(classify=by_text)

    @hf.job(retry=AT_ONCE, retry_on=(ValueError,))
    async def charge(card: str) -> None:
        raise ValueError(f"card is {card}")

    await charge.enqueue("void")
    await drain(hf)
    assert (await only(hf)).attempts == 1


async def test_a_classify_function_that_breaks_is_passed_over_and_noted(hf: Holdfast) -> None:
    def broken(error: BaseException) -> Verdict | None:
        raise ZeroDivisionError("oops")

    @hf.job(retry=RetryPolicy.none(), classify=broken)
    async def charge() -> None:
        raise ValueError("the real one")

    await charge.enqueue()
    await drain(hf)
    (run,) = await run_records(hf)
    assert run.error == "the real one"
    assert "classify raised ZeroDivisionError" in (run.trace or "")


async def test_a_classify_function_that_returns_no_verdict_is_an_error_that_names_the_handler(hf: Holdfast) -> None:
    @hf.job(retry=AT_ONCE, classify=lambda error: "retry")  # type: ignore[arg-type,return-value]
    async def charge() -> None:
        raise ValueError("the real one")

    await charge.enqueue()
    await drain(hf)
    dead = await only(hf)
    assert (dead.status, dead.attempts) == (Status.FAILED, 1)
    assert "classify of job charge returned 'retry'; return Verdict.retry()" in (dead.last_error or "")
    (run,) = await run_records(hf)
    assert "the real one" in (run.trace or "")


async def test_a_class_named_park_waits_and_spends_nothing(hf: Holdfast) -> None:
    @hf.job(retry=RetryPolicy.none(), park_on=(CacheDown,))
    async def warm() -> None:
        raise CacheDown("away")

    await warm.enqueue()
    before = datetime.now(UTC)
    await drain(hf)
    parked = await only(hf)
    assert (parked.status, parked.attempts) == (Status.PENDING, 0)
    assert parked.run_at > before + timedelta(minutes=4)


async def test_a_class_named_block_is_probed_by_the_resource_it_carries(make_app: MakeApp) -> None:
    asked: list[str] = []

    async def cache_is_well() -> bool:
        asked.append("cache")
        return False

    hf = make_app(probes={"cache": cache_is_well})

    @hf.job(retry=RetryPolicy.none(), block_on=(CacheDown,))
    async def warm() -> None:
        raise CacheDown("away")

    await warm.enqueue()
    await drain(hf, idle_limit=timedelta(0))
    assert asked == ["cache"]
    blocked = await only(hf)
    assert (blocked.status, blocked.attempts, blocked.holds) == (Status.PENDING, 0, 0)


@pytest.mark.parametrize(("status", "attempts"), [(503, 3), (429, 3), (408, 3), (404, 1), (422, 1), (401, 1), (409, 1)])
async def test_an_exception_with_an_http_status_goes_by_it(hf: Holdfast, status: int, attempts: int) -> None:
    @hf.job(retry=AT_ONCE)
    async def call() -> None:
        raise HTTPError(status)

    await call.enqueue()
    await drain(hf)
    assert (await only(hf)).attempts == attempts


async def test_the_retry_after_of_an_answer_is_honoured(hf: Holdfast) -> None:
    @hf.job(retry=AT_ONCE)
    async def call() -> None:
        raise HTTPError(429, {"Retry-After": "900"})

    await call.enqueue()
    before = datetime.now(UTC)
    await drain(hf)
    assert timedelta(minutes=14) < (await only(hf)).run_at - before < timedelta(minutes=16)


async def test_a_payload_that_does_not_fit_the_handler_is_dead_at_once(make_app: MakeApp) -> None:
    hf = make_app(validate=False)

    class Order(BaseModel):
        order_id: int

    @hf.job(retry=AT_ONCE)
    async def ship(order: Order) -> None: ...

    @hf.job(retry=AT_ONCE)
    async def check() -> None:
        Order.model_validate({"order_id": "many"})

    await ship.enqueue({"order_id": "many"})  # type: ignore[arg-type]
    await check.enqueue()
    await drain(hf)
    for name, error in (("ship", "InvalidPayload"), ("check", "ValidationError")):
        dead = await only(hf, name)
        assert (dead.status, dead.attempts) == (Status.FAILED, 1)
        assert error in (dead.error_type or "")
