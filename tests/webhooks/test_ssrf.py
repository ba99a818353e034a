"""Which addresses may be called, and that no other one is called, for any DNS answer."""

import asyncio
import socket
from typing import Any

import pytest

from holdfast.core.errors import AddressRefused, ConfigurationError
from holdfast.outbound.webhooks import ssrf
from holdfast.outbound.webhooks.ssrf import Resolver, check_networks, check_url, permitted, shown

PUBLIC = [
    "8.8.8.8",
    "93.184.216.34",
    "172.32.0.1",
    "100.128.0.1",
    "2606:4700::1111",
    "64:ff9b::808:808",
    "::ffff:8.8.8.8",
]
SPECIAL = [
    "0.0.0.0",  # noqa: S104
    "10.0.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.9",
    "224.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
    "not an address",
]


@pytest.mark.parametrize("one", PUBLIC)
def test_public_addresses_may_be_called(one: str) -> None:
    assert permitted(one)


@pytest.mark.parametrize("one", SPECIAL)
def test_private_and_special_addresses_may_not(one: str) -> None:
    assert not permitted(one)


def test_a_network_that_was_allowed_may_be_called_and_no_other() -> None:
    allowed = check_networks(["127.0.0.0/8", "fd00::/8"])
    assert permitted("127.0.0.1", allowed)
    assert permitted("::ffff:127.0.0.1", allowed)
    assert permitted("fd12::1", allowed)
    assert not permitted("10.0.0.1", allowed)
    assert not permitted("::1", allowed)


@pytest.mark.parametrize("given", [["10.0.0.1/8"], ["everything"], [""], "10.0.0.0/8"])
def test_what_is_no_network_is_refused(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="network"):
        check_networks(given)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://acme.test/in", "encrypted"),
        ("ftp://acme.test/in", "scheme"),
        ("file:///etc/passwd", "scheme"),
        ("acme.test/in", "scheme"),
        ("https:///in", "host"),
        ("https://user:s3cret@acme.test/in", "password"),
        ("https://user@acme.test/in", "user name"),
        ("https://acme.test/in#part", "fragment"),
        ("https://acme.test/in\r\nx: y", "characters"),
        ("https://acme.test/a b", "characters"),
        ("https://münchen.test/", "xn--"),
        ("https://acme.test:99999/", "[Pp]ort"),
        ("https://[::1/", "[Ii]nvalid"),
        ("https://acme.test/" + "a" * 3000, "characters"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused(url: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem) as refused:
        check_url(url)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "[::ffff:10.0.0.1]", "169.254.169.254", "10.1.2.3:8080"])
def test_a_url_with_a_forbidden_address_is_refused_before_it_is_stored(host: str) -> None:
    with pytest.raises(AddressRefused):
        check_url(f"https://{host}/in")


def test_what_may_be_secret_in_a_url_is_not_shown() -> None:
    assert shown("https://u:p@acme.test:8443/in/x?token=t") == "https://acme.test:8443/in/x?…"
    assert shown("https://[2606::1]/in") == "https://[2606::1]/in"


class Dns:
    """Answers lookups in turn, as a name server that rebinds does."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers, self.asked = list(answers), 0

    def __call__(self, host: str, port: int, **_: Any) -> list[Any]:
        self.asked += 1
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in found]


async def test_a_name_that_leads_inside_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = Resolver()
    for found in (["127.0.0.1"], ["8.8.8.8", "10.0.0.1"], ["169.254.169.254", "8.8.8.8"]):
        monkeypatch.setattr(ssrf, "getaddrinfo", Dns(found))
        with pytest.raises(AddressRefused, match=r"acme\.test"):
            await resolver.addresses("acme.test", 443)
    resolver.close()


@pytest.mark.parametrize("disguise", ["2130706433", "0x7f.1", "127.1", "0177.0.0.1", "localhost"])
async def test_an_address_in_disguise_is_refused(disguise: str) -> None:
    resolver = Resolver()
    with pytest.raises((AddressRefused, ConnectionError)):
        await resolver.addresses(disguise, 80)
    resolver.close()


async def test_a_name_without_an_address_is_a_failure_to_connect() -> None:
    resolver = Resolver()
    with pytest.raises(ConnectionError, match="no address"):
        await resolver.addresses("nowhere.invalid", 443)
    resolver.close()


async def test_one_lookup_serves_all_who_ask_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    dns = Dns(["8.8.8.8"])
    monkeypatch.setattr(ssrf, "getaddrinfo", dns)
    resolver = Resolver()
    found = await asyncio.gather(*(resolver.addresses("acme.test", 443) for _ in range(20)))
    assert found == [["8.8.8.8"]] * 20
    assert dns.asked < 20
    resolver.close()
