"""`holdfast webhooks` as operators use it, and bad input to it."""

import asyncio
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import standardwebhooks

from holdfast import Holdfast, WebhookOptions, WorkerOptions
from tests.cli.conftest import Shop

OPEN = {"HOLDFAST_WEBHOOK_NETWORKS": "127.0.0.0/8", "HOLDFAST_WEBHOOK_HTTP": "1"}


class Receiver(http.server.BaseHTTPRequestHandler):
    received: list[tuple[dict[str, str], bytes]]
    answer = 200

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.received.append((dict(self.headers), body))
        self.send_response(self.answer)
        self.end_headers()
        self.wfile.write(b"said \x1b[31m" + self.headers.get("authorization", "").encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[tuple[str, type[Receiver]]]:
    kind = type("Receiver", (Receiver,), {"received": []})
    server = http.server.HTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/in", kind
    server.shutdown()
    thread.join()
    server.server_close()


def added(shop: Shop, *more: str, url: str = "https://acme.test/in") -> dict[str, str]:
    result = shop.run("webhooks", "add", url, "--event", "order.*", *more, "--format", "json", env=dict(OPEN))
    assert result.exit_code == 0, result.stderr
    found: dict[str, str] = json.loads(result.stdout)
    return found


def listed(shop: Shop, *more: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(shop.run("webhooks", "list", *more, "--format", "json").stdout)
    return found


def test_an_endpoint_is_added_listed_disabled_and_enabled(shop: Shop) -> None:
    assert "no endpoints" in shop.run("webhooks", "list").stderr
    one = added(
        shop,
        "--tenant",
        "acme",
        "--header",
        "authorization=Bearer s3cret",
        "--rate",
        "5",
        url="https://acme.test/in?token=t0",
    )
    added(shop, "--tenant", "globex")
    (shown,) = listed(shop, "--tenant", "acme")
    assert (shown["id"], shown["url"], shown["headers"]) == (one["id"], "https://acme.test/in?…", ["authorization"])
    assert (shown["events"], shown["rate"], shown["circuit"]) == (["order.*"], "5/1s", "closed")
    assert shop.run("webhooks", "disable", one["id"], "--reason", "they \x1b[31masked").exit_code == 0
    table = shop.run("webhooks", "list")
    assert "disabled" in table.stdout
    assert "\x1b" not in table.stdout
    assert shop.run("webhooks", "enable", one["id"]).exit_code == 0
    leaked = "moved from https://ada:hunter2@acme.test/in"
    assert shop.run("webhooks", "disable", one["id"], "--reason", leaked).exit_code == 0
    assert "hunter2" not in json.dumps(listed(shop, "--tenant", "acme"))
    assert "was already disabled" in shop.run("webhooks", "disable", one["id"], "--reason", "x").stderr
    assert " enabled" in shop.run("webhooks", "enable", one["id"]).stderr
    assert "was not disabled" in shop.run("webhooks", "enable", one["id"]).stderr
    assert listed(shop, "--tenant", "acme")[0]["disabled_at"] is None
    output = shop.run("audit", "list").stdout
    assert all(word in output for word in ("add", "disable", "enable", f"webhook {one['id']}"))


def test_secrets_are_shown_when_they_are_made_and_never_again(shop: Shop) -> None:
    first = added(shop, "--header", "authorization=Bearer s3cret")
    second = shop.run("webhooks", "rotate-secret", first["id"], "--overlap", "2h").stdout
    (shown,) = listed(shop)
    assert shown["previous_secret_until"] is not None
    assert "whsec_" in second
    output = "".join(
        shop.run(*words).output
        for words in (
            ("webhooks", "list"),
            ("webhooks", "list", "--format", "json"),
            ("audit", "list", "--format", "json"),
            ("consumers", "list", "--format", "json"),
        )
    )
    assert "whsec_" not in output
    assert first["secret"].removeprefix("whsec_") not in output
    assert "s3cret" not in output


def test_a_test_event_is_signed_and_its_answer_shown(shop: Shop, receiver: tuple[str, type[Receiver]]) -> None:
    url, kind = receiver
    one = added(shop, "--header", "authorization=Bearer s3cret", url=url)
    result = shop.run("webhooks", "test", one["id"], env=dict(OPEN))
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("accepted: 200 after ")
    assert "said \\x1b[31m[redacted]" in result.stdout
    headers, body = kind.received[0]
    standardwebhooks.Webhook(one["secret"]).verify(body, headers)
    assert json.loads(body)["type"] == "webhook.test"
    kind.answer = 500
    refused = shop.run("webhooks", "test", one["id"], "--format", "json", env=dict(OPEN))
    assert refused.exit_code == 1
    assert json.loads(refused.stdout)["status"] == 500


def test_a_test_goes_nowhere_it_may_not_go(shop: Shop, receiver: tuple[str, type[Receiver]]) -> None:
    url, kind = receiver
    one = added(shop, url=url)
    result = shop.run("webhooks", "test", one["id"], "--allow-http")
    assert result.exit_code == 1
    assert "nothing was sent" in result.stderr
    assert kind.received == []
    assert shop.run("webhooks", "test", one["id"], "--allow-http", "--allow-network", "127.0.0.0/8").exit_code == 0


def test_what_a_receiver_answered_is_shown_with_its_delivery(shop: Shop, receiver: tuple[str, type[Receiver]]) -> None:
    url, _ = receiver
    one = added(shop, url=url)

    async def deliver() -> None:
        hf = Holdfast(shop.dsn, webhooks=WebhookOptions(allow_networks=("127.0.0.0/8",), allow_http=True))
        await hf.publish("order.placed", {}, conn=None)
        await hf.work(WorkerOptions(until_idle=True, cron=False))
        await hf.close()

    asyncio.run(deliver())
    (id,) = shop.ids(consumers=(f"webhook:{one['id']}",))
    output = shop.run("deliveries", "show", id).stdout
    assert '"status":200' in output
    (run,) = json.loads(shop.run("deliveries", "show", id, "--format", "json").stdout)["runs"]
    assert run["detail"]["excerpt"] == "said \\x1b[31m"


CASES: list[tuple[tuple[str, ...], int, str]] = [
    (("add", "https://acme.test/in"), 2, "--event"),
    (("add", "http://acme.test/in", "--event", "*"), 2, "not encrypted"),
    (("add", "acme.test", "--event", "*"), 2, "scheme"),
    (("add", "https://u:p4ss@acme.test/", "--event", "*"), 2, "password"),
    (("add", "https://127.0.0.1/", "--event", "*"), 4, "private or reserved"),
    (("add", "https://[::1]/", "--event", "*"), 4, "private or reserved"),
    (("add", "https://acme.test/", "--event", "a..b"), 2, "pattern"),
    (("add", "https://acme.test/", "--event", "*", "--tenant", "a b"), 2, "tenant"),
    (("add", "https://acme.test/", "--event", "*", "--header", "novalue"), 2, "NAME=VALUE"),
    (("add", "https://acme.test/", "--event", "*", "--header", "host=x"), 2, "header host"),
    (("add", "https://acme.test/", "--event", "*", "--header", "x=a\nb"), 2, "header x"),
    (("add", "https://acme.test/", "--event", "*", "--rate", "0"), 2, "rate"),
    (("add", "https://acme.test/", "--event", "*", "--rate", "nan"), 2, "rate"),
    (("add", "https://acme.test/", "--event", "*", "--concurrency", "0"), 2, "concurrency"),
    (("add", "https://acme.test/", "--event", "*", "--allow-network", "here"), 2, "not a network"),
    (("disable", "nope"), 2, "--reason"),
    (("disable", "nope", "--reason", "x"), 3, "webhooks list"),
    (("enable", "nope"), 3, "webhooks list"),
    (("rotate-secret", "nope"), 3, "webhooks list"),
    (("rotate-secret", "nope", "--overlap", "soon"), 2, "overlap"),
    (("rotate-secret", "nope", "--overlap", "91d"), 2, "overlap"),
    (("rotate-secret", "nope", "--overlap", "-1s"), 2, "overlap"),
    (("test", "nope"), 3, "webhooks list"),
    (("test", "nope", "--allow-network", "x"), 2, "not a network"),
    (("list", "--tenant"), 2, "--tenant"),
]


@pytest.mark.parametrize(("words", "code", "said"), CASES)
def test_bad_input_is_one_line_and_a_code(shop: Shop, words: tuple[str, ...], code: int, said: str) -> None:
    result = shop.run("webhooks", *words)
    assert (result.exit_code, result.stdout) == (code, ""), result.stderr
    assert said in result.stderr
    assert "p4ss" not in result.stderr
    assert listed(shop) == []


def test_an_endpoint_may_lead_where_the_app_allows_it(shop: Shop) -> None:
    (shop.folder / "inside.py").write_text(
        "from holdfast import Holdfast, WebhookOptions\n"
        "hf = Holdfast(webhooks=WebhookOptions(allow_networks=('127.0.0.0/8',), allow_http=True))\n"
    )
    endpoint = ("webhooks", "add", "http://127.0.0.1:9/in", "--event", "order.*")
    assert shop.run(*endpoint).exit_code != 0
    result = shop.run(*endpoint, "--app", f"{shop.folder / 'inside.py'}:hf")
    assert result.exit_code == 0, result.stderr
    assert [one["url"] for one in listed(shop)] == ["http://127.0.0.1:9/in"]
