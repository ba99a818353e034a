"""One request against real servers of every kind: bounded in time and bytes, and only where it may go."""

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trustme

from holdfast.core.errors import AddressRefused, ConfigurationError
from holdfast.outbound.webhooks import sender as sender_module
from holdfast.outbound.webhooks import ssrf
from holdfast.outbound.webhooks.options import WebhookOptions
from holdfast.outbound.webhooks.sender import MOST_BODY, WebhookResponse, WebhookSender, excerpt_of
from tests.webhooks.receiver import (
    LOOPBACK,
    Act,
    Request,
    answer,
    echo,
    endless_body,
    endless_headers,
    gibberish,
    receiving,
    reset,
    silent,
    stalling_body,
    trickle,
)
from tests.webhooks.test_ssrf import Dns

WITHIN = 0.5


@asynccontextmanager
async def sending(options: WebhookOptions = LOOPBACK) -> AsyncIterator[WebhookSender]:
    sender = WebhookSender(options)
    try:
        yield sender
    finally:
        await sender.close()


async def posted(act: Act, **given: Any) -> WebhookResponse:
    async with receiving(act) as receiver, sending() as sender:
        return await sender.post(receiver.url, {"content-length": "2"}, b"{}", **{"within": 5.0} | given)


async def test_an_answer_has_its_status_its_latency_and_an_excerpt() -> None:
    got = await posted(answer(202, b"queued", retry_after="7", date="Sun, 06 Nov 1994 08:49:37 GMT", x_other="1"))
    assert (got.status, got.excerpt) == (202, "queued")
    assert got.latency > 0
    assert got.headers == {"retry-after": "7", "date": "Sun, 06 Nov 1994 08:49:37 GMT"}


@pytest.mark.parametrize("act", [silent, trickle], ids=["silent", "trickling"])
async def test_a_receiver_that_does_not_answer_in_time_is_hung_up_on(act: Act) -> None:
    async with receiving(act) as receiver, sending() as sender:
        with pytest.raises(TimeoutError, match=r"127\.0\.0\.1 did not answer within"):
            await sender.post(receiver.url, {"content-length": "2"}, b"{}", within=WITHIN)
        await asyncio.wait_for(receiver.requests[0].hung_up.wait(), 5)


async def test_headers_without_end_are_not_read_to_the_end() -> None:
    with pytest.raises(ConnectionError, match="not reached"):
        await posted(endless_headers)


async def test_a_body_without_end_is_read_as_far_as_an_excerpt_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_module, "excerpt_of", lambda body, _: str(len(body)))
    async with receiving(endless_body) as receiver, sending() as sender:
        got = await sender.post(receiver.url, {"content-length": "2"}, b"{}", within=5)
        await asyncio.wait_for(receiver.requests[0].hung_up.wait(), 5)
    assert (got.status, got.excerpt) == (200, str(MOST_BODY))


async def test_a_body_that_stalls_costs_a_moment_and_not_the_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_module, "_BODY_SECONDS", 0.1)
    got = await posted(stalling_body, within=5.0)
    assert (got.status, got.excerpt) == (200, "half")


async def test_a_success_whose_body_comes_too_late_is_a_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_module, "_BODY_SECONDS", 0.6)
    got = await posted(stalling_body, within=0.4)
    assert (got.status, got.excerpt) == (200, "half")


@pytest.mark.parametrize("act", [reset, gibberish], ids=["reset", "gibberish"])
async def test_a_receiver_that_breaks_off_or_speaks_no_http_is_a_failure_to_connect(act: Act) -> None:
    with pytest.raises(ConnectionError, match="not reached"):
        await posted(act)


async def test_a_port_where_no_server_listens_is_a_failure_to_connect() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        async with sending() as sender:
            with pytest.raises(ConnectionError, match="not reached"):
                await sender.post(f"http://127.0.0.1:{free.getsockname()[1]}/", {}, b"", within=5)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_an_answer_and_is_not_followed(status: int) -> None:
    async with receiving(answer(200)) as inside, receiving(answer(status, location=inside.url)) as outside:
        async with sending() as sender:
            got = await sender.post(outside.url, {"content-length": "2"}, b"{}", within=5)
        assert got.status == status
        assert inside.requests == []


async def test_without_leave_loopback_is_not_called() -> None:
    async with receiving(answer(200)) as receiver, sending(WebhookOptions(allow_http=True)) as sender:
        with pytest.raises(AddressRefused, match="allow_networks"):
            await sender.post(receiver.url, {}, b"", within=5)
        with pytest.raises(AddressRefused, match="localhost"):
            await sender.post(receiver.url.replace("127.0.0.1", "localhost"), {}, b"", within=5)
        assert receiver.requests == []


async def test_without_leave_nothing_goes_out_unencrypted() -> None:
    async with receiving(answer(200)) as receiver, sending(replace(LOOPBACK, allow_http=False)) as sender:
        with pytest.raises(ConfigurationError, match="encrypted"):
            await sender.post(receiver.url, {}, b"", within=5)
        assert receiver.requests == []


async def test_a_name_that_is_rebound_after_the_check_leads_to_the_address_that_was_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dns = Dns(["127.0.0.1"], ["127.0.0.2"])
    monkeypatch.setattr(ssrf, "getaddrinfo", dns)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("the name was looked up again"))
    async with receiving(answer(200)) as receiver, sending() as sender:
        got = await sender.post(f"http://acme.test:{receiver.port}/in", {"content-length": "0"}, b"", within=5)
        assert got.status == 200
        assert receiver.requests[0].headers["host"] == f"acme.test:{receiver.port}"
    assert dns.asked == 1


async def test_every_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssrf, "getaddrinfo", Dns(["127.0.0.9", "127.0.0.1"]))
    async with receiving(answer(204)) as receiver, sending() as sender:
        got = await sender.post(f"http://acme.test:{receiver.port}/", {"content-length": "0"}, b"", within=5)
    assert got.status == 204


async def test_a_lookup_that_hangs_ends_with_the_time_out_and_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = Dns(["127.0.0.1"])

    def lookup(host: str, port: int, **given: Any) -> list[Any]:
        if host == "slow.test":
            time.sleep(1)
        return hangs(host, port, **given)

    monkeypatch.setattr(ssrf, "getaddrinfo", lookup)
    async with receiving(answer(200)) as receiver, sending() as sender:
        url = f"http://{{}}.test:{receiver.port}/"
        stuck = [
            asyncio.create_task(sender.post(url.format("slow"), {"content-length": "0"}, b"", within=0.2))
            for _ in range(40)
        ]
        await asyncio.sleep(0.05)
        got = await sender.post(url.format("quick"), {"content-length": "0"}, b"", within=0.9)
        assert got.status == 200
        for error in await asyncio.gather(*stuck, return_exceptions=True):
            assert isinstance(error, TimeoutError)


async def test_certificates_are_checked_by_name_although_the_address_is_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ssrf, "getaddrinfo", Dns(["127.0.0.1"]))
    authority = trustme.CA()
    names: list[str | None] = []
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.sni_callback = lambda _, name, __: names.append(name)
    authority.issue_cert("acme.test").configure_cert(theirs)
    ours = ssl.create_default_context()
    authority.configure_trust(ours)
    options = WebhookOptions(allow_networks=("127.0.0.0/8",), ssl_context=ours)
    async with receiving(answer(200), theirs) as receiver, sending(options) as sender:
        got = await sender.post(f"https://acme.test:{receiver.port}/", {"content-length": "0"}, b"", within=5)
        assert (got.status, names) == (200, ["acme.test"])
        with pytest.raises(ConnectionError, match="certificate"):
            await sender.post(f"https://other.test:{receiver.port}/", {"content-length": "0"}, b"", within=5)
        with pytest.raises(ConnectionError, match="certificate"):
            await sender.post(f"https://127.0.0.1:{receiver.port}/", {"content-length": "0"}, b"", within=5)


async def test_credentials_that_a_receiver_echoes_are_kept_out_of_the_excerpt() -> None:
    async with receiving(echo) as receiver, sending() as sender:
        headers = {"content-length": "0", "authorization": "Bearer s3cret"}
        got = await sender.post(receiver.url, headers, b"", within=5, secret=["Bearer s3cret"])
    assert "authorization: [redacted]" in got.excerpt
    assert "s3cret" not in got.excerpt


@pytest.mark.parametrize(
    ("body", "excerpt"),
    [
        (b"", ""),
        (b"plain text", "plain text"),
        (b"caf\xc3\xa9 \xf0\x9f\x98\x80", "café 😀"),
        (b"\xff\xfe\x00", "\\xff\\xfe\\x00"),
        (b"a\r\nb\tc\x1b[31m", "a\\r\\nb\\tc\\x1b[31m"),
        ("\u202eevil\u2028".encode(), "\\u202eevil\\u2028"),
        (b'say "hi"', "say 'hi'"),
        (b"x" * 5000, "x" * 499 + "…"),
        (b"\x00" * 5000, "\\x00" * 124 + "\\x0…"),
    ],
)
def test_an_excerpt_is_one_bounded_printable_line(body: bytes, excerpt: str) -> None:
    assert excerpt_of(body) == excerpt


async def test_a_handshake_that_hangs_is_hung_up_on() -> None:
    left = asyncio.Event()

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        left.set()
        writer.close()

    async with await asyncio.start_server(mute, "127.0.0.1", 0) as listening, sending() as sender:
        url = f"https://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"
        with pytest.raises(TimeoutError):
            await sender.post(url, {"content-length": "0"}, b"", within=0.2)
        async with asyncio.timeout(3):
            await left.wait()


async def test_certificates_are_read_once_and_not_for_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving(reset) as receiver, sending() as sender:
        monkeypatch.setattr("httpcore2._async.connection.default_ssl_context", lambda: pytest.fail("read again"))
        with pytest.raises(OSError, match=r"127\.0\.0\.1"):
            await sender.post(receiver.url.replace("http", "https"), {"content-length": "0"}, b"", within=0.1)


async def test_what_is_not_http_is_reported_in_a_bounded_line_without_credentials() -> None:
    async def garbled(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ns3cret " + b"z" * 50_000 + b"\r\n\r\n")
        await writer.drain()

    with pytest.raises(ConnectionError) as raised:
        await posted(garbled, secret=["s3cret"])
    assert len(str(raised.value)) < 600
    assert "s3cret" not in str(raised.value)
