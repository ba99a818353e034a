"""Webhooks and stored responses: what leaves is decrypted, what is stored is not."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import httpx2
import pytest
import standardwebhooks

from holdfast import ConfigurationError, EncryptionKeyMissing, Holdfast, IdempotencyMiddleware, Refused
from holdfast.cipher import AesGcm
from holdfast.core.delivery import Status
from holdfast.idempotency.redis import RedisRecords
from tests.encryption.conftest import NEW, OLD, Dump
from tests.servers.redis import RedisServer
from tests.support.apps import MakeApp
from tests.support.worker import Log, drain, logged, only, query
from tests.webhooks.receiver import LOOPBACK, answer, receiving

SECRET = "plaintext-4711"


async def test_a_webhook_is_posted_decrypted_and_signed_with_the_stored_secret(make_app: MakeApp, dump: Dump) -> None:
    hf = make_app(cipher=AesGcm({"old": OLD}), webhooks=LOOPBACK)
    async with receiving(answer(200, b"thanks")) as receiver:
        added = await hf.webhooks.add(receiver.url, events=["note.*"], conn=None, headers={"X-Token": SECRET})
        stored = await dump(hf)
        assert added.secret.removeprefix("whsec_") not in stored
        assert SECRET not in stored
        await hf.publish("note.a", {"text": SECRET}, conn=None)
        await drain(hf)
        (request,) = receiver.requests
        assert request.json["data"] == {"text": SECRET}
        assert request.headers["x-token"] == SECRET
        standardwebhooks.Webhook(added.secret).verify(request.body, request.headers)
        rotated = await hf.ops.rotate_webhook_secret(added.id, actor="ada")
        assert rotated.secret.removeprefix("whsec_") not in await dump(hf)
        other = make_app(webhooks=LOOPBACK)
        assert [one.id for one in await other.ops.webhooks()] == [added.id]
        with pytest.raises(EncryptionKeyMissing, match="key 'old'"):
            await other.ops.test_webhook(added.id, actor="ada")
        assert (await hf.ops.test_webhook(added.id, actor="ada", options=LOOPBACK)).accepted


async def test_an_endpoint_whose_secret_cannot_be_read_holds_its_deliveries(make_app: MakeApp) -> None:
    hf = make_app(cipher=AesGcm({"old": OLD}), webhooks=LOOPBACK)
    async with receiving(answer(200, b"thanks")) as receiver:
        await hf.webhooks.add(receiver.url, events=["note.*"], conn=None)
        other = make_app(cipher=AesGcm({"new": NEW}), webhooks=LOOPBACK)
        await other.publish("note.a", {"n": 1}, conn=None)
        await drain(other, idle_limit=timedelta(seconds=1))
        row = await only(other)
        assert (row.status, row.attempts) == (Status.PENDING, 0)
        assert "key 'old'" in str(row.last_error)
        assert receiver.requests == []


class Shop:
    """An application that counts its requests."""

    def __init__(self) -> None:
        self.runs = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.runs += 1
        await send({"type": "http.response.start", "status": 201, "headers": [(b"x-token", SECRET.encode())]})
        await send({"type": "http.response.body", "body": SECRET.encode()})


def client(hf: Holdfast, shop: Shop) -> httpx2.AsyncClient:
    guarded = IdempotencyMiddleware(shop, hf, scope=lambda _: "blue")
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=guarded), base_url="http://shop")


async def test_a_stored_response_is_encrypted_and_replayed(
    hf: Holdfast, make_app: MakeApp, dump: Dump, log: Log
) -> None:
    shop, key = Shop(), {"Idempotency-Key": "order-1"}
    async with client(hf, shop) as http:
        first = await http.post("/pay", headers=key, json={"n": 1})
        again = await http.post("/pay", headers=key, json={"n": 1})
        assert (await http.post("/pay", headers=key, json={"n": 2})).status_code == 409
    assert (first.status_code, first.text, first.headers["x-token"]) == (201, SECRET, SECRET)
    assert (again.status_code, again.text, again.headers["x-token"]) == (201, SECRET, SECRET)
    stored = await dump(hf)
    assert SECRET not in stored
    assert "order-1" in stored, "keys are readable"
    other = make_app()
    async with client(other, shop) as http:
        refused = await http.post("/pay", headers=key, json={"n": 1})
    assert refused.status_code == 503
    assert "did not run again" in refused.text
    assert "key 'old'" in logged(log, "idempotency response unreadable")[0]["error"]
    assert shop.runs == 1
    with pytest.raises(Refused):
        await other.ops.release_idempotency_key("blue", "order-1", actor="ada")


async def test_a_response_copied_to_another_key_is_refused(hf: Holdfast) -> None:
    shop = Shop()
    async with client(hf, shop) as http:
        for name in ("a", "b"):
            await http.post("/pay", headers={"Idempotency-Key": name}, json={"n": 1})
        await query(
            hf,
            "update {hf}idempotency set response_body = "
            "(select o.response_body from {hf}idempotency o where o.key = 'a') where key = 'b'",
        )
        assert (await http.post("/pay", headers={"Idempotency-Key": "b"}, json={"n": 1})).status_code == 503
    assert shop.runs == 2


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


async def test_responses_in_redis_are_encrypted_with_the_cipher_of_the_records(
    redis_server: RedisServer, log: Log
) -> None:
    import redis

    shop, key, prefix = Shop(), {"Idempotency-Key": "order-1"}, f"test:{uuid4()}"

    def records(cipher: AesGcm | None) -> RedisRecords:
        return RedisRecords(redis_server.url, prefix, cipher=cipher)

    async def post(cipher: AesGcm | None) -> httpx2.Response:
        found = records(cipher)
        guarded = IdempotencyMiddleware(shop, records=found, scope=lambda _: "blue")
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=guarded), base_url="http://shop") as http:
            answered = await http.post("/pay", headers=key, json={"n": 1})
        await found.close()
        return answered

    old, both = AesGcm({"old": OLD}), AesGcm({"old": OLD, "new": NEW}, current="new")
    for answered in (await post(old), await post(old), await post(both)):
        assert (answered.status_code, answered.text, answered.headers["x-token"]) == (201, SECRET, SECRET)
    with redis.Redis.from_url(redis_server.url) as client:
        (name,) = client.keys(f"{prefix}*")
        stored = client.hgetall(name)
        assert SECRET not in str(stored)
        for cipher in (None, AesGcm({"new": NEW})):
            assert (await post(cipher)).status_code == 503
            assert "key 'old'" in logged(log, "idempotency response unreadable")[-1]["error"]
        client.hset(name, "body", stored[b"headers"])
        assert (await post(old)).status_code == 503
    assert shop.runs == 1
    with pytest.raises(ConfigurationError, match="cipher is a str"):
        RedisRecords(redis_server.url, cipher=OLD)  # type: ignore[arg-type]
