"""Declared secrets reach only handlers: no log, no stored error and no response to an operator contains them."""

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
import structlog
from click.testing import CliRunner
from mcp import Client
from pydantic import BaseModel
from structlog.testing import LogCapture

from holdfast import Cancel, Context, Holdfast, RetryPolicy, TerminalError, event, redact_logs
from holdfast.alerts import DeadLetterAlert
from holdfast.console import console
from holdfast.core.redaction.redact import Redaction
from holdfast.interfaces.api.app import ENDPOINTS, api
from holdfast.interfaces.api.endpoint import Caller
from holdfast.interfaces.cli import main
from holdfast.interfaces.cli.logs import _masked
from holdfast.interfaces.console.app import PAGES
from holdfast.interfaces.mcp.server import server
from holdfast.interfaces.presentation.views import dumps
from holdfast.stores.admin.redaction import redactions
from holdfast.stores.admin.token import Scope
from holdfast.stores.queries.query import Filter
from tests.support.apps import MakeApp
from tests.support.worker import Log, all_of, drain, only, query

CARD = "4111-1111-1111-1111"
PASSWORD = "hünter'2\nsecond line"
PIN = 90210
TOKEN = "tok-in-a-header"
DSN_PASSWORD = "sesame-street"
SECRETS = (CARD, "hünter", "second line", "h\\xfcnter", "h%C3%BCnter", str(PIN), TOKEN, DSN_PASSWORD)
HEADERS = {"request_id": "r-1", "authorization": f"Bearer {TOKEN}", "x-api-key": TOKEN}


@event("card.charged", redact=["card.number", "accounts.*.pin"])
@dataclass
class Charged:
    """An order paid by card."""

    order_id: int
    card: dict[str, str]
    accounts: dict[str, Any]
    note: str = ""
    login: dict[str, str] = field(default_factory=dict)


CHARGED = Charged(7, {"number": CARD, "kind": "visa"}, {"main": {"pin": PIN}}, "harmless", {"password": PASSWORD})


class Unreadable(Exception):
    """Says all it knows, several times."""

    def __init__(self, charged: Charged) -> None:
        super().__init__(
            f"cannot charge {charged.card['number']} of {charged!r} via postgresql://shop:{DSN_PASSWORD}@db/shop "
            f"with pin {charged.accounts['main']['pin']}: {json.dumps(charged.login)} {charged.login['password']}"
        )


def charging(hf: Holdfast, how: str) -> None:
    """A consumer that fails and writes its payload into the error and the log."""
    logger = structlog.get_logger("shop")

    @hf.consumer(Charged, name="charge", retry=RetryPolicy.none())
    async def charge(ctx: Context, charged: Charged) -> None:
        assert charged == CHARGED  # whole, for the one that needs it
        logger.info("charging", card=charged.card["number"], deep=[{"pin": PIN}], url=f"redis://:{DSN_PASSWORD}@r/0")
        ctx.detail = {"seen": charged.card["number"], "pin": PIN, "url": f"amqp://x:{DSN_PASSWORD}@rabbit"}
        if how == "cancel":
            raise Cancel(f"card {charged.card['number']} is gone")
        try:
            raise Unreadable(charged)
        except Unreadable as error:
            error.add_note(f"note on {charged.card['number']}")
            raise TerminalError(f"gave up on {charged.card['number']}") from error


@pytest.fixture
def redacted_log() -> Iterator[Log]:
    capture = LogCapture()
    text = structlog.processors.format_exc_info
    structlog.configure(processors=[structlog.contextvars.merge_contextvars, text, redact_logs, capture])
    yield capture.entries  # type: ignore[misc]
    structlog.reset_defaults()


def clean(text: str) -> bool:
    found = [secret for secret in SECRETS if secret in text or json.dumps(secret)[1:-1] in text]
    assert found == [], f"{found} in {text}"
    return True


@pytest.mark.parametrize("how", ["die", "cancel"])
async def test_a_secret_reaches_no_log_no_row_no_alert_and_no_operator(
    make_app: MakeApp, redacted_log: Log, how: str, dsn: str
) -> None:
    alerts: list[DeadLetterAlert] = []
    hf = make_app(redact=["**.password"], alerts=[alerts.append])
    charging(hf, how)
    await hf.publish(CHARGED, conn=None, headers=HEADERS)
    await drain(hf)
    delivery = await only(hf)

    assert len(redacted_log) > 1
    assert clean(repr(redacted_log))
    assert clean(repr(alerts))
    assert clean("".join(json.dumps(alert.fields(), default=str) for alert in alerts))
    assert len(alerts) == (how == "die")
    for table in ("delivery", "run"):
        prefix = "holdfast." if dsn.startswith("postgresql") else "holdfast_"
        stored = repr(await query(hf, f"select * from {prefix}{table}"))
        assert "[redacted]" in stored
        assert clean(stored)

    ops = hf.ops
    answers = {
        "messages": await ops.messages(),
        "message": await ops.message(delivery.message_id),
        "deliveries": await ops.deliveries(Filter()),
        "delivery": await ops.delivery(delivery.id),
        "export": await ops.export(Filter()),
        "groups": await ops.failure_groups(),
        "audit": await ops.audit(),
    }
    for answer in answers.values():
        assert clean(dumps(answer))
    assert "harmless" in dumps(answers["message"])
    assert '"kind":"visa"' in dumps(answers["export"])

    for command in (
        ["messages", "show", str(delivery.message_id)],
        ["messages", "list"],
        ["deliveries", "show", str(delivery.id)],
        ["dlq", "list"],
        ["dlq", "groups"],
        ["dlq", "export"],
    ):
        for format in ("table", "json", "jsonl"):
            result = CliRunner().invoke(main, [*command, "--dsn", dsn, "--format", format], prog_name="holdfast")
            assert result.exit_code == 0, result.output
            assert clean(result.output)


async def test_no_front_end_shows_a_secret(make_app: MakeApp) -> None:
    hf = make_app(redact=["**.password"])
    charging(hf, "die")
    await hf.publish(CHARGED, conn=None, headers=HEADERS, key="order:7")
    await drain(hf)
    delivery = await only(hf)
    reason = f"fixed at https://ada:{DSN_PASSWORD}@git.test/fix with token={TOKEN}"
    await hf.ops.replay([delivery.id], actor="ada", reason=reason)
    await drain(hf)
    ids = {"delivery": str(delivery.id), "message": str(delivery.message_id), "audit": ""}
    shown = 0
    operator = Caller("ada", Scope.ADMIN)
    transport = httpx2.ASGITransport(api(hf, anonymous=operator))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1/api/v1") as client:
        for endpoint in ENDPOINTS:
            if endpoint.method != "GET":
                continue
            for id in ids.values():
                answer = await client.get(endpoint.path.format(id=id, name="charge", scope="a", key="b"))
                assert clean(answer.text)
                shown += "[redacted]" in answer.text
    screens = httpx2.ASGITransport(console(hf, actor=lambda _: ("ada", "admin")))
    async with httpx2.AsyncClient(transport=screens, base_url="http://shop.test") as client:
        for path in PAGES:
            for id in ids.values():
                answer = await client.get(path.format(id=id), params={"id": "r-1", "q": id})
                assert clean(answer.text)
                shown += "[redacted]" in answer.text
    async with Client(server(hf.ops, actor="agent")) as agent:
        for tool, arguments in (
            ("list_dlq_events", {}),
            ("get_dlq_event_detail", {"id": ids["delivery"]}),
            ("get_message", {"id": ids["message"]}),
            ("list_failure_groups", {}),
            ("list_audit", {}),
        ):
            result = str(await agent.call_tool(tool, arguments))
            assert clean(result)
            shown += "[redacted]" in result
    assert shown > 12  # or else nothing was looked at


async def test_rows_that_were_written_before_anything_was_declared_show_no_secret_either(make_app: MakeApp) -> None:
    before = make_app()

    @before.consumer("card.charged", name="charge", retry=RetryPolicy.none())
    async def charge(charged: dict[str, Any]) -> None:
        raise ValueError(f"cannot charge {charged['card']['number']}")

    await before.publish("card.charged", {"card": {"number": CARD}}, conn=None)
    await drain(before)
    delivery = await only(before)
    assert delivery.last_error is not None
    assert CARD in delivery.last_error

    after = make_app()
    await after.publish(CHARGED, conn=None)
    detail = await before.ops.delivery(delivery.id)
    assert clean(dumps(detail))
    assert detail.listed.delivery.last_error == "cannot charge [redacted]"


async def test_a_producer_declares_what_its_events_hold_though_it_has_no_handler(make_app: MakeApp) -> None:
    hf = make_app(redact=["**.password"])
    await hf.publish_many([CHARGED] * 150, conn=None)
    declared = await hf.store.run(redactions())
    assert declared == {
        Redaction("card.charged", "card.number"),
        Redaction("card.charged", "accounts.*.pin"),
        Redaction("*", "**.password"),
    }
    worker = make_app()

    @worker.consumer("card.*", name="audit", retry=RetryPolicy.none())
    async def audit(payload: dict[str, Any]) -> None:
        raise ValueError(payload["card"]["number"])

    await hf.publish(CHARGED, conn=None)
    await drain(worker)
    assert {delivery.last_error for delivery in await all_of(worker)} == {"[redacted]"}


class Strict(BaseModel):
    """A payload that is checked."""

    number: str
    amount: int


async def test_a_payload_that_does_not_fit_is_not_quoted_in_parts(make_app: MakeApp) -> None:
    hf = make_app(redact=["number"])
    secret = "s3cret-" * 30
    checked = event("card.checked")(Strict)

    @hf.consumer(checked, name="check", retry=RetryPolicy.none())
    async def check(payload: Strict) -> None: ...

    await hf.publish("card.checked", {"number": secret}, conn=None)
    await drain(hf)
    (listed,) = await hf.ops.deliveries(Filter())
    assert "s3cret" not in dumps(await hf.ops.delivery(listed.delivery.id))
    assert "amount: Field required" in (listed.delivery.last_error or "")


def test_lines_of_other_libraries_lose_the_passwords_of_addresses() -> None:
    record = logging.LogRecord("driver", 30, "x.py", 1, "cannot reach %s", (f"postgres://a:{DSN_PASSWORD}@h/d",), None)
    assert _masked(record)
    assert record.getMessage() == "cannot reach postgres://a:[redacted]@h/d"
