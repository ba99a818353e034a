"""The WSGI middleware in front of a small application. What the gate decides is tested with ASGI; here, the protocol."""

import io
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from holdfast.core.errors import StoreUnavailable
from holdfast.idempotency.wsgi import WsgiIdempotencyMiddleware
from tests.idempotency.record_stores import RecordStore


class Shop:
    """A WSGI application that counts what it does."""

    def __init__(self, answer: Callable[["Shop", dict[str, Any], Any], Iterable[bytes]] | None = None) -> None:
        self.runs: list[bytes] = []
        self.status = "201 Created"
        self.closed = 0
        self.answer = answer

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        self.runs.append(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)))
        if self.answer is not None:
            return self.answer(self, environ, start_response)
        start_response(self.status, [("Content-Type", "text/plain"), ("Set-Cookie", "a=1")])
        return [f"run {len(self.runs)}".encode()]


class Client:
    """Calls a WSGI application as a server does."""

    def __init__(self, place: RecordStore, shop: Shop, **options: Any) -> None:
        options = {"scope": lambda request: request.headers.get("x-tenant", "t1"), **options}
        self.app = WsgiIdempotencyMiddleware(shop, records=options.pop("records", place.records), **options)

    def post(self, key: str | None = "k", body: bytes = b"x", **environ: Any) -> tuple[int, dict[str, str], bytes]:
        given = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": "/orders",
            "wsgi.input": io.BytesIO(body),
            "CONTENT_LENGTH": str(len(body)),
            **({} if key is None else {"HTTP_IDEMPOTENCY_KEY": key}),
            **environ,
        }
        head: list[Any] = []

        def start(status: str, headers: Any, exc_info: Any = None) -> Any:
            head.extend((status, headers))

        result = self.app(given, start)
        try:
            content = b"".join(result)
        finally:
            getattr(result, "close", lambda: None)()
        return int(head[0][:3]), {name.lower(): value for name, value in head[1]}, content


def test_a_repetition_gets_the_first_answer_and_nothing_runs_again(place: RecordStore) -> None:
    shop = Shop()
    client = Client(place, shop)
    first, again = client.post(), client.post()
    assert (first[0], first[2]) == (again[0], again[2]) == (201, b"run 1")
    assert "idempotent-replayed" not in first[1]
    assert again[1]["idempotent-replayed"] == "true"
    assert (again[1]["content-type"], again[1]["content-length"]) == ("text/plain", "5")
    assert "set-cookie" in first[1]
    assert "set-cookie" not in again[1]
    assert client.post(body=b"y")[0] == 409
    assert client.post(HTTP_X_TENANT="t2")[2] == b"run 2"
    assert shop.runs == [b"x", b"x"]


def test_many_at_once_run_once(place: RecordStore) -> None:
    barrier = threading.Barrier(8)

    def slow(shop: Shop, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        barrier_passed.wait(10)
        start_response("201 Created", [])
        return [b"done"]

    barrier_passed = threading.Event()
    shop = Shop(slow)
    client = Client(place, shop)

    def one(_: int) -> tuple[int, dict[str, str], bytes]:
        barrier.wait(10)
        threading.Timer(0.1, barrier_passed.set).start()
        return client.post()

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(one, range(8)))
    assert len(shop.runs) == 1
    assert sorted({status for status, _, _ in answers}) in ([201], [201, 409])
    assert all(headers["retry-after"] == "1" for status, headers, _ in answers if status == 409)


def test_who_waits_gets_the_answer(sql_place: RecordStore) -> None:
    begun, resume = threading.Event(), threading.Event()

    def waits(shop: Shop, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        begun.set()
        resume.wait(10)
        start_response("201 Created", [])
        return [b"done"]

    client = Client(sql_place, Shop(waits), wait="20s")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(client.post)
        begun.wait(10)
        second = pool.submit(client.post)
        resume.set()
        assert first.result()[2] == second.result()[2] == b"done"


@pytest.mark.parametrize("failure", ["status", "exception", "in the body"])
def test_a_failure_releases_the_key(sql_place: RecordStore, failure: str) -> None:
    def fails_first(shop: Shop, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if len(shop.runs) > 1 or failure == "in the body":
            start_response("200 OK", [])
            return pieces(shop)
        if failure == "exception":
            raise RuntimeError("boom")
        start_response("500 Oops", [])
        return [b"oops"]

    def pieces(shop: Shop) -> Iterator[bytes]:
        yield b"fi"
        if len(shop.runs) == 1:
            raise RuntimeError("boom")
        yield b"ne"

    client = Client(sql_place, Shop(fails_first))
    if failure == "status":
        assert client.post()[0] == 500
    else:
        with pytest.raises(RuntimeError, match="boom"):
            client.post()
    assert client.post()[2] == b"fine"


def test_after_a_failure_another_request_under_the_key_is_still_refused(place: RecordStore) -> None:
    shop = Shop()
    shop.status = "500 Internal Server Error"
    client = Client(place, shop)
    assert client.post()[0] == 500
    shop.status = "201 Created"
    assert client.post(body=b"other")[0] == 409
    assert client.post(body=b"x")[0] == 201
    assert len(shop.runs) == 2


def test_what_the_application_gives_is_closed_and_written(sql_place: RecordStore) -> None:
    shop = Shop()

    class Given:
        def __iter__(self) -> Iterator[bytes]:
            return iter([b"b", b"c"])

        def close(self) -> None:
            shop.closed += 1

    def old_style(shop: Shop, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])(b"a")
        return Given()

    shop.answer = old_style
    client = Client(sql_place, shop)
    assert client.post()[2] == client.post()[2] == b"abc"
    assert shop.closed == 1


def test_an_answer_too_large_to_keep_flows_and_is_not_repeated(place: RecordStore) -> None:
    taken: list[int] = []

    def large(shop: Shop, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        return (taken.append(n) or b"x" * 1000 for n in range(20))  # type: ignore[func-returns-value]

    shop = Shop(large)
    client = Client(place, shop, max_response=5000)
    assert client.post()[2] == b"x" * 20_000
    assert client.post()[0] == 409
    assert len(shop.runs) == 1


def test_without_a_key_nothing_is_held_back(sql_place: RecordStore) -> None:
    came: list[int] = []

    def streams(shop: Shop, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        return (came.append(n) or b"x" for n in range(3))  # type: ignore[func-returns-value]

    app = Client(sql_place, Shop(streams)).app
    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/", "wsgi.input": io.BytesIO()}
    start: Any = lambda status, headers: None  # noqa: E731
    result = iter(app(environ, start))
    assert next(result) == b"x"
    assert came == [0]


def test_bodies_are_read_as_the_server_gives_them_and_no_further_than_the_limit(sql_place: RecordStore) -> None:
    shop = Shop()
    client = Client(sql_place, shop, max_body=10)
    assert client.post("a", b"x" * 11)[0] == 413
    assert client.post("b", b"chunked", CONTENT_LENGTH="", **{"wsgi.input_terminated": True})[0] == 201
    assert client.post("c", b"unread", CONTENT_LENGTH="")[0] == 201
    assert shop.runs == [b"chunked", b""]


def test_a_client_that_goes_away_while_sending_begins_nothing(sql_place: RecordStore) -> None:
    shop = Shop()
    client = Client(sql_place, shop)
    status, headers, _ = client.post(body=b"amount=1", CONTENT_LENGTH="9")
    assert (status, headers["content-type"], shop.runs) == (400, "application/problem+json", [])
    assert client.post(body=b"amount=10")[0] == 201


def test_what_is_written_counts_to_the_limit_too(sql_place: RecordStore) -> None:
    def writes(shop: Shop, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])(b"x" * 20)
        return []

    client = Client(sql_place, Shop(writes), max_response=10)
    assert client.post()[2] == b"x" * 20
    assert client.post()[0] == 409


@pytest.mark.parametrize("key", [None, "k"])
def test_an_error_in_an_answer_that_flows_breaks_it_off(sql_place: RecordStore, key: str | None) -> None:
    def breaks(shop: Shop, environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        try:
            yield b"x" * 20
            raise RuntimeError("boom")
        except RuntimeError:
            start_response("500 Oops", [], sys.exc_info())
            yield b"oops"

    with pytest.raises(RuntimeError, match="boom"):
        Client(sql_place, Shop(breaks), max_response=10).post(key)


def test_a_required_key_is_asked_for_and_a_bad_one_refused(sql_place: RecordStore) -> None:
    shop = Shop()
    assert Client(sql_place, shop, required=True).post(None)[0] == 400
    assert Client(sql_place, shop).post("a, b")[0] == 400  # as a server joins two headers
    assert Client(sql_place, shop, scope=lambda request: None).post()[0] == 400
    assert shop.runs == []
    assert Client(sql_place, shop).post(None)[0] == 201


def test_when_the_records_are_away_nothing_runs(sql_place: RecordStore) -> None:
    class Away:
        store = None

        def do_sync(self, step: Any) -> Any:
            raise StoreUnavailable("db")

    shop = Shop()
    assert Client(sql_place, shop, records=Away()).post()[0] == 503
    assert shop.runs == []


def test_a_long_request_keeps_its_lease(sql_place: RecordStore) -> None:
    begun, resume = threading.Event(), threading.Event()

    def waits(shop: Shop, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        begun.set()
        resume.wait(10)
        start_response("201 Created", [])
        return [b"done"]

    shop = Shop(waits)
    client = Client(sql_place, shop, lease="600ms")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.post)
        begun.wait(10)
        threading.Event().wait(1)
        assert client.post()[0] == 409
        resume.set()
        assert first.result()[0] == 201


def test_a_late_finisher_gets_the_answer_that_counts(sql_place: RecordStore) -> None:
    begun, resume = threading.Event(), threading.Event()

    def stalls_first(shop: Shop, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        run = len(shop.runs)
        if run == 1:
            begun.set()
            resume.wait(10)
        start_response("201 Created", [])
        return [f"run {run}".encode()]

    client = Client(sql_place, Shop(stalls_first))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.post)
        begun.wait(10)
        sql_place.pass_time(timedelta(seconds=11))
        assert client.post()[2] == b"run 2"
        resume.set()
        assert first.result()[2] == b"run 2"
