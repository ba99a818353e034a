"""Service clients of both colours against a real server: the retry table, headers, types, limits."""

import asyncio
import gzip
import inspect
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx2
import pytest
from pydantic import BaseModel, ValidationError
from structlog.testing import LogCapture

from holdfast import (
    CircuitBreaker,
    CircuitOpen,
    ConfigurationError,
    InvalidPayload,
    RetryBudget,
    RetryPolicy,
    ServiceClient,
    ServiceRefused,
    SyncServiceClient,
    TerminalError,
    correlate,
)
from holdfast.outbound.client import Availability, Response
from tests.outbound.loopback import Drip, Endless, Hang, Reply, Reset, Server

FAST = RetryPolicy.fixed(0.001, attempts=3, retry_after_cap=0.02)


class Invoice(BaseModel):
    id: int
    total: float


class Blocking:
    """The async client, called as the blocking one is, so that one test covers both."""

    def __init__(self, base_url: str, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self._client = ServiceClient(base_url, **options)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            async def main() -> Any:
                return await method(*args, **kwargs)

            return self._runner.run(main())

        return call

    def end(self) -> None:
        self._runner.run(self._client.close())
        self._runner.close()


class Colour:
    """Makes clients of one colour and closes them."""

    def __init__(self, name: str, server: Server) -> None:
        self.name, self.server, self.made = name, server, list[Any]()

    def __call__(self, base: str = "/v1", **options: Any) -> Any:
        kind = Blocking if self.name == "async" else SyncServiceClient
        client = kind(
            self.server.url + base, **{"policy": FAST, "verify": False, **options}
        )  # no TLS here, and a context takes long to make
        self.made.append(client)
        return client


@pytest.fixture(params=["async", "sync"])
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[Colour]:
    colour = Colour(request.param, server)
    yield colour
    for made in colour.made:
        made.end() if isinstance(made, Blocking) else made.close()


RETRIED = [408, 425, 429, 500, 502, 503, 504]
TERMINAL = [400, 401, 403, 404, 422, 301, 405, 410, 501]


@pytest.mark.parametrize("status", RETRIED)
def test_these_answers_are_tried_again(client: Colour, status: int) -> None:
    client.server.plays(Reply(status), Reply(status), Reply(200, b'{"id": 1, "total": 2.5}'))
    assert client().get("/invoices/1", returns=Invoice) == Invoice(id=1, total=2.5)
    assert len(client.server.requests) == 3


@pytest.mark.parametrize("status", TERMINAL)
def test_these_answers_are_final(client: Colour, status: int) -> None:
    client.server.plays(Reply(status, b"the reason"))
    with pytest.raises(ServiceRefused) as raised:
        client().get("/x")
    assert len(client.server.requests) == 1
    assert (raised.value.status, raised.value.body) == (status, "the reason")
    assert str(status) in str(raised.value)
    assert "the reason" not in str(raised.value)


def test_a_service_that_stays_down_is_given_up_on(client: Colour) -> None:
    client.server.plays(Reply(503, headers={"retry-after": "0"}))
    with pytest.raises(ServiceRefused) as raised:
        client().get("/x")
    assert len(client.server.requests) == 3
    assert raised.value.headers == {"Retry-After": "0"}
    assert "attempt 3 of 3" in raised.value.__notes__[0]


@pytest.mark.parametrize("act", [Reset(), Hang()], ids=["reset", "time-out"])
def test_network_errors_and_time_outs_are_tried_again(client: Colour, act: Reset | Hang) -> None:
    client.server.plays(act, Reply(200, b"7"))
    assert client(timeout=0.2).get("/x", returns=int) == 7


def test_a_port_where_no_server_listens_is_tried_again(client: Colour, lines: LogCapture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        client.server.port, port = taken.getsockname()[1], client.server.port
        try:
            with pytest.raises(Exception, match=r"refused|failed"):
                client().get("/x")
        finally:
            client.server.port = port
    assert [line["attempt"] for line in lines.entries] == [1, 2, 3]


def test_a_conflict_is_final_unless_it_is_what_was_wanted(client: Colour) -> None:
    client.server.plays(Reply(409))
    with pytest.raises(ServiceRefused):
        client().post("/x", json={}, idempotency_key="k")
    assert len(client.server.requests) == 1
    assert client().post("/x", json={}, conflict_ok=True).status == 409
    assert client().post("/x", json={}, conflict_ok=True, returns=Invoice) is None


def test_a_conflict_with_retry_after_is_under_way_and_tried_again(client: Colour) -> None:
    client.server.plays(Reply(409, headers={"retry-after": "0"}), Reply(201, b"5"))
    assert client().post("/x", idempotency_key="k", returns=int, conflict_ok=True) == 5
    assert len(client.server.requests) == 2


def http_date(seconds: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


@pytest.mark.parametrize(
    ("after", "waited"),
    [
        ("0", 0.0),
        ("-7", 0.0),
        ("1000000000000", 0.02),
        ("0.0", 0.0),
        # Named: processes that share the tests must collect the same ones, at any time.
        pytest.param(http_date(-3600), 0.0, id="an hour ago"),
        pytest.param(http_date(3600), 0.02, id="in an hour"),
        ("soon", 0.001),
        ("", 0.001),
    ],
)
def test_retry_after_of_every_kind_is_honoured_and_clamped(
    client: Colour, after: str, waited: float, lines: LogCapture
) -> None:
    client.server.plays(Reply(429, headers={"retry-after": after}), Reply())
    client().get("/x")
    assert lines.entries[0]["next_attempt_in"] == waited


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_what_changes_something_is_repeated_only_under_a_key(client: Colour, method: str) -> None:
    client.server.plays(Reply(503))
    with pytest.raises(ServiceRefused):
        client().request(method, "/x")
    assert len(client.server.requests) == 1
    client.server.plays(Reply(503), Reply(503), Reply(200))
    client().request(method, "/x", idempotency_key="order:7:pay:v1")
    keys = [request.headers["idempotency-key"] for request in client.server.requests]
    assert keys == ["order:7:pay:v1"] * 3


def test_content_that_is_not_the_type_is_final(client: Colour) -> None:
    for body in (b"<html>", b'{"id": "x"}', b""):
        client.server.plays(Reply(200, body))
        with pytest.raises(ValidationError):
            client().get("/x", returns=Invoice)
        assert len(client.server.requests) == 1


def test_any_type_is_read_from_json_and_written_to_it(client: Colour) -> None:
    client.server.plays(Reply(200, b'[{"id": 1, "total": 2}]'))
    assert client().get("/x", returns=list[Invoice]) == [Invoice(id=1, total=2)]
    client.server.plays(Reply(204, b""))
    assert client().post("/x", json=Invoice(id=3, total=1.5), returns=type(None)) is None
    (request,) = client.server.requests
    assert request.body == b'{"id":3,"total":1.5}'
    assert request.headers["content-type"] == "application/json"
    client.server.plays(Reply(200, b"raw", {"X-Thing": "1"}))
    answer = client().get("/x", params={"q": "a b"})
    assert isinstance(answer, Response)
    assert (answer.body, answer.headers["x-thing"]) == (b"raw", "1")
    assert client.server.requests[0].path == "/v1/x?q=a+b"


def test_ids_travel_in_headers_and_stay_the_same_in_every_attempt(client: Colour) -> None:
    client.server.plays(Reply(503), Reply())
    with correlate(request_id="r-9", user_id="u-1"):
        client().get("/x")
    sent = [(request.headers["x-request-id"], request.headers.get("x-user-id")) for request in client.server.requests]
    assert sent == [("r-9", None)] * 2, "who the user is goes along only where asked"
    client.server.plays(Reply())
    with correlate(user_id="u-1"):
        client(forward_headers={"user_id": "x-user-id"}).get("/x")
    assert client.server.requests[0].headers["x-user-id"] == "u-1"
    client.server.plays(Reply(503), Reply())
    with correlate(user_id="line\u2028break"):
        client(forward_headers={"request_id": "x-rid", "user_id": "x-uid"}, key_header="x-key").get(
            "/x", idempotency_key="k"
        )
    first, second = (request.headers for request in client.server.requests)
    assert first["x-rid"] == second["x-rid"] != ""
    assert first["x-key"] == "k"
    assert "x-uid" not in first
    client.server.plays(Reply())
    client().get("/x", user="u-2", headers={"x-more": "1"})
    assert client.server.requests[0].headers["x-user-id"] == "u-2"
    assert client.server.requests[0].headers["x-more"] == "1"


def test_the_token_is_asked_for_before_every_attempt_and_shown_nowhere(client: Colour, lines: LogCapture) -> None:
    tokens = iter(["s3cret-1", "s3cret-2"])
    client.server.plays(Reply(503), Reply())
    made = client(token=lambda: next(tokens))
    made.get("/x")
    assert [r.headers["authorization"] for r in client.server.requests] == ["Bearer s3cret-1", "Bearer s3cret-2"]
    client.server.plays(Reply(401))
    fixed = client(token="s3cret-3")
    with pytest.raises(ServiceRefused) as raised:
        fixed.get("/x?access_token=s3cret-4")
    assert client.server.requests[0].headers["authorization"] == "Bearer s3cret-3"
    real = fixed._client if isinstance(fixed, Blocking) else fixed
    assert "s3cret" not in f"{lines.entries}{raised.value!r}{raised.value}{real!r}{raised.value.__notes__}"


def test_an_async_token_is_awaited_or_refused(client: Colour) -> None:
    async def token() -> str:
        return "later"

    client.server.plays(Reply())
    if client.name == "async":
        client(token=token).get("/x")
        assert client.server.requests[0].headers["authorization"] == "Bearer later"
    else:
        with pytest.raises(TerminalError, match="give it a synchronous one"):
            client(token=token).get("/x")
        assert client.server.requests == []


def test_a_call_may_be_named_and_its_lines_and_errors_carry_the_name(client: Colour, lines: LogCapture) -> None:
    client.server.plays(Reply(503), Reply(200, b"1"), Reply(200, b"1"))
    client().get("/invoices/7", operation="billing.get_invoice")
    client().get("/invoices/8")
    assert [line["operation"] for line in lines.entries] == [
        "billing.get_invoice",
        "billing.get_invoice",
        "GET /invoices/8",
    ]
    with pytest.raises(ConfigurationError, match="operation"):
        client().get("/invoices/7", operation="a\nb")


def test_every_attempt_is_one_line_with_latency_status_and_error_class(client: Colour, lines: LogCapture) -> None:
    client.server.plays(Reply(503), Reset(), Reply(201, b"1"))
    with correlate(request_id="r-1", trace_id="t-1"):
        client(name="billing").post("/pay?card=1", json={}, idempotency_key="k")
    first, second, third = lines.entries
    shared = {
        "service": "billing",
        "operation": "POST /pay",
        "http_method": "POST",
        "path": "/pay",
        "request_id": "r-1",
        "trace_id": "t-1",
        "idempotency_key": "k",
        "max_attempts": 3,
    }
    for line in (first, second, third):
        assert shared.items() <= line.items()
        assert line["latency_ms"] >= 0
    assert (first["event"], first["http_status"], first["error_type"]) == (
        "operation retried",
        503,
        "holdfast.ServiceRefused",
    )
    assert (second["attempt"], second["error_type"]) == (2, "httpx2.RemoteProtocolError")
    assert (third["event"], third["attempt"], third["http_status"]) == ("call completed", 3, 201)


@pytest.mark.parametrize(
    "act",
    [Hang(), Drip(), Drip(head=b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n")],
    ids=["silent", "slow head", "slow body"],
)
def test_a_time_out_aborts_the_connection_to_a_slow_server(client: Colour, act: Hang | Drip) -> None:
    client.server.plays(act)
    with pytest.raises(Exception, match=r"did not answer|timed out|took too long"):
        client(timeout=0.3, policy=RetryPolicy.none()).get("/x")
    assert client.server.left.wait(3), "the server still has its client"


def test_the_deadline_bounds_all_attempts(client: Colour) -> None:
    client.server.plays(Hang())
    with pytest.raises(Exception, match=r"did not answer|timed out|took too long") as raised:
        client(timeout=60).get("/x", deadline=0.3)
    assert client.server.left.wait(3)
    assert len(client.server.requests) == 1
    assert "after the deadline" in raised.value.__notes__[0]


def test_an_answer_without_end_is_cut_off(client: Colour) -> None:
    client.server.plays(Endless())
    with pytest.raises(InvalidPayload, match="over 100,000 bytes"):
        client(max_response=100_000).get("/x")
    assert client.server.left.wait(3)
    assert len(client.server.requests) == 1


def test_a_dead_service_opens_its_circuit_and_is_then_left_alone(client: Colour) -> None:
    breaker = CircuitBreaker("billing", threshold=3)
    client.server.plays(Reply(500))
    made = client(breaker=breaker)
    with pytest.raises(CircuitOpen) as raised:
        made.get("/x")
    assert isinstance(raised.value.__cause__, ServiceRefused)
    with pytest.raises(CircuitOpen) as raised:
        made.get("/x")
    assert len(client.server.requests) == 3
    assert raised.value.name == "billing"


def test_a_service_that_refuses_is_not_a_dead_one(client: Colour) -> None:
    breaker = CircuitBreaker("billing", threshold=1)
    made = client(breaker=breaker, policy=RetryPolicy.none())
    for status in (404, 422, 429):
        client.server.plays(Reply(status))
        with pytest.raises(ServiceRefused):
            made.get("/x")
    client.server.plays(Reply())
    made.get("/x")


def test_a_hanging_service_opens_its_circuit(client: Colour) -> None:
    client.server.plays(Hang())
    made = client(breaker=CircuitBreaker("slow", threshold=2), timeout=0.1, policy=RetryPolicy.none())
    with pytest.raises(Exception, match=r"did not answer|timed out"):
        made.get("/x")
    with pytest.raises(CircuitOpen):
        made.get("/x")
    client.server.plays(Reply())
    with pytest.raises(CircuitOpen):
        made.get("/x")
    assert client.server.requests == []


def test_retries_are_a_fraction_of_the_calls_by_default(client: Colour) -> None:
    client.server.plays(Reply(503))
    made = client(policy=RetryPolicy.fixed(0, attempts=10))
    for _ in range(40):
        with pytest.raises(ServiceRefused):
            made.get("/x")
    assert 40 < len(client.server.requests) <= 40 * 1.2 + 10 + 5  # the reserve, and what came in a few seconds
    client.server.plays(Reply(503))
    with pytest.raises(ServiceRefused):
        client(budget=False, policy=RetryPolicy.fixed(0, attempts=10)).get("/x")
    assert len(client.server.requests) == 10
    client.server.plays(Reply(503))
    with pytest.raises(ServiceRefused):
        client(budget=RetryBudget(0, 0, 1), policy=RetryPolicy.fixed(0, attempts=10)).get("/x")
    assert len(client.server.requests) == 2


def test_a_probe_distinguishes_unavailable_from_retriable(client: Colour) -> None:
    made = client(timeout=0.2)
    for act, reach in (
        (Reply(200), Availability.AVAILABLE),
        (Reply(404), Availability.AVAILABLE),
        (Reply(503), Availability.RETRIABLE),
        (Reply(429), Availability.RETRIABLE),
        (Reset(), Availability.UNAVAILABLE),
        (Hang(), Availability.UNAVAILABLE),
    ):
        client.server.plays(act)
        assert made.probe("/healthz") is reach
        assert len(client.server.requests) == 1
    assert not Availability.RETRIABLE
    client.server.plays(Reply(500))
    guarded = client(breaker=CircuitBreaker("x", threshold=2))
    assert guarded.probe() is Availability.RETRIABLE
    assert guarded.probe() is Availability.UNAVAILABLE
    assert guarded.probe() is Availability.UNAVAILABLE


@pytest.mark.parametrize("path", ["https://evil.example/x", "//evil.example/x", "http://127.0.0.1/x"])
def test_a_path_cannot_lead_the_token_elsewhere(client: Colour, path: str) -> None:
    client.server.plays(Reply())
    with pytest.raises(ConfigurationError, match="is not a path of"):
        client(token="t").get(path)
    client.server.plays(Reply(302, headers={"location": "http://evil.example/"}))
    with pytest.raises(ServiceRefused):
        client(token="t").get("/x")


@pytest.mark.parametrize("url", ["ftp://x", "billing", "https://user:pw@host/", "https://host/?q=1"])
def test_a_base_url_that_would_leak_or_lead_nowhere_is_refused(url: str) -> None:
    for kind in (ServiceClient, SyncServiceClient):
        with pytest.raises(ConfigurationError) as raised:
            kind(url)
        assert "pw" not in str(raised.value).replace("password", "")


def test_connections_are_kept_and_bounded(client: Colour) -> None:
    client.server.plays(Reply())
    made = client(max_connections=1)
    before = client.server.connections
    for _ in range(5):
        made.get("/x")
    assert client.server.connections == before + 1


async def test_a_call_that_is_cancelled_leaves_nothing_behind(server: Server) -> None:
    breaker = CircuitBreaker("billing", threshold=1, cooldown=0.01, jitter=0)
    async with ServiceClient(server.url, breaker=breaker, policy=RetryPolicy.none(), verify=False) as client:
        server.plays(Reply(500))
        with pytest.raises(CircuitOpen):
            await client.get("/x")
        await asyncio.sleep(0.02)
        server.plays(Hang())
        task = asyncio.create_task(client.get("/x"))
        assert await asyncio.to_thread(server.came.wait, 3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(server.left.wait, 3)
        assert len(server.requests) == 1
        permit = await breaker.admit()
        assert permit.probe  # nothing was learnt, and the next may look


def test_both_clients_offer_the_same() -> None:
    def offered(kind: type) -> set[str]:
        return {name for name, value in vars(kind).items() if inspect.isfunction(value) and not name.startswith("_")}

    assert offered(ServiceClient) == offered(SyncServiceClient)


@pytest.mark.parametrize("token", ["s3cret\n", " s3cret", "s3cr\u00e9t", ""])
def test_a_token_that_cannot_be_sent_is_shown_nowhere(client: Colour, lines: LogCapture, token: str) -> None:
    client.server.plays(Reply())
    with pytest.raises(TerminalError, match="the token for") as raised:
        client(token=lambda: token).get("/x")
    assert client.server.requests == []
    assert "s3cr" not in f"{lines.entries}{raised.value!r}"


def test_a_header_that_cannot_be_sent_is_named_and_its_value_is_not(client: Colour) -> None:
    for options in ({"headers": {"X-Api-Key": "s3cret\r\nx-more: 1"}}, {"user": "s3cret\n"}):
        with pytest.raises(ConfigurationError) as raised:
            client().get("/x", **options)
        assert "s3cret" not in str(raised.value)


def test_a_header_is_sent_once_in_any_spelling(client: Colour) -> None:
    seen: list[httpx2.Headers] = []

    def answered(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.headers)
        return httpx2.Response(200)

    made = client(headers={"X-Team": "a"}, token="ours", transport=httpx2.MockTransport(answered))
    made.get("/x", headers={"x-team": "b", "Authorization": "theirs"})
    assert (seen[0].get_list("x-team"), seen[0].get_list("authorization")) == (["b"], ["Bearer ours"])


@pytest.mark.parametrize(
    "name", ["operation", "http_status", "attempt", "idempotency_key", "reason", "next_attempt_at"]
)
def test_a_correlation_id_of_any_name_changes_nothing(client: Colour, lines: LogCapture, name: str) -> None:
    client.server.plays(Reply(503), Reply(), Reply(404))
    with correlate(**{name: "mine"}):
        client().post("/x", idempotency_key="k")
        with pytest.raises(ServiceRefused):
            client().post("/x", idempotency_key="k")
    assert [line["event"] for line in lines.entries] == ["operation retried", "call completed", "operation failed"]
    assert lines.entries[1]["http_status"] == 200


def test_cookies_of_one_answer_do_not_go_along_with_the_next_call(client: Colour) -> None:
    client.server.plays(Reply(headers={"set-cookie": "session=1; Path=/"}), Reply())
    made = client()
    made.get("/x")
    made.get("/x")
    assert "cookie" not in client.server.requests[1].headers


async def test_a_token_that_does_not_come_is_a_time_out_that_says_so(server: Server) -> None:
    async def token() -> str:
        await asyncio.Event().wait()
        return ""

    async with ServiceClient(server.url, token=token, timeout=0.05, policy=RetryPolicy.none(), verify=False) as made:
        with pytest.raises(TimeoutError, match=r"the token for .* was not available within 0\.05 s"):
            await made.get("/x")


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_handshake_that_is_broken_off_closes_its_connection(cancelled: bool) -> None:
    came, left = asyncio.Event(), asyncio.Event()

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        came.set()
        await reader.read()
        left.set()
        writer.close()

    async with await asyncio.start_server(mute, "127.0.0.1", 0) as listening:
        url = f"https://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        made = ServiceClient(url, timeout=5 if cancelled else 0.2, policy=RetryPolicy.none(), verify=False)
        asking = asyncio.ensure_future(made.get("/x"))
        if cancelled:
            await came.wait()
            asking.cancel()
        await asyncio.wait([asking])
        async with asyncio.timeout(3):
            await left.wait()
        await made.close()


def test_an_answer_is_unpacked_only_as_it_was_asked_for(client: Colour) -> None:
    client.server.plays(Reply(body=gzip.compress(b"[7]"), headers={"content-encoding": "gzip"}))
    assert client().get("/x", returns=list[int]) == [7]
    assert client.server.requests[0].headers["accept-encoding"] == "gzip, deflate"
    for encoding in ("gzip, gzip", "br", "zstd"):
        client.server.plays(Reply(body=gzip.compress(gzip.compress(b"[7]")), headers={"content-encoding": encoding}))
        with pytest.raises(InvalidPayload, match="not requested"):
            client().get("/x")
        assert len(client.server.requests) == 1
