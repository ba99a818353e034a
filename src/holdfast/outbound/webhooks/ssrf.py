"""Protection against server-side request forgery: a webhook must not reach the internal network of the worker."""

import asyncio
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from socket import SOCK_STREAM, gaierror, getaddrinfo
from urllib.parse import urlsplit

from holdfast.core.errors import AddressRefused, ConfigurationError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_MOST_URL = 2_000
_PORTS = {"https": 443, "http": 80}
_LOOKUPS = 64

# All networks that the IANA registries do not list as globally reachable, and Azure's metadata address, which they do.
_SPECIAL_V4 = tuple(
    IPv4Network(network)
    for network in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16"),
        *("172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15"),
        *("198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
    )
)
# IPv6: only global unicast, without its reserved parts: Teredo and other tunnels contain an IPv4 address.
_GLOBAL_V6 = IPv6Network("2000::/3")
_SPECIAL_V6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))
_V4_MAPPED = tuple(map(IPv6Network, ("::ffff:0:0/96", "64:ff9b::/96")))


def check_networks(networks: Iterable[str]) -> tuple[Network, ...]:
    """Parses networks such as ``10.1.0.0/16``. Raises `ConfigurationError`."""
    if isinstance(networks, str):
        raise ConfigurationError(f"{networks!r} is a string; give a tuple of networks, such as ('10.1.0.0/16',)")
    found = []
    for network in networks:
        try:
            found.append(ip_network(network))
        except ValueError as error:
            raise ConfigurationError(f"{network!r} is not a network ({error}); write it as 10.1.0.0/16") from None
    return tuple(found)


def permitted(address: str, allowed: Sequence[Network] = ()) -> bool:
    """Return whether an address may be called: it is public, or in one of the `allowed` networks.

    >>> permitted("93.184.216.34"), permitted("169.254.169.254"), permitted("::ffff:127.0.0.1")
    (True, False, False)
    """
    try:
        found = _unmapped(ip_address(address))
    except ValueError:
        return False
    if any(found in network for network in allowed):
        return True
    if isinstance(found, IPv4Address):
        return not any(found in network for network in _SPECIAL_V4)
    return found in _GLOBAL_V6 and not any(found in network for network in _SPECIAL_V6)


def _unmapped(address: Address) -> Address:
    """Returns the IPv4 address inside a mapped IPv6 address, else the address."""
    if isinstance(address, IPv6Address) and any(address in network for network in _V4_MAPPED):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def check_url(url: str, *, allow_http: bool = False, allowed: Sequence[Network] = ()) -> str:
    """Return `url` if a webhook may be posted there; does not query the DNS.

    Raises `ConfigurationError` for a scheme other than https (or http, if allowed), credentials, fragments and control
    characters. Raises `AddressRefused` for an address that may not be called.
    """
    problem = _url_problem(url, allow_http)
    if problem:
        raise ConfigurationError(f"a webhook cannot be posted to {shown(url)!r}: {problem}")
    host = host_of(url)
    if _is_address(host) and not permitted(host, allowed):
        raise AddressRefused(host, host)
    return url


def _url_problem(url: str, allow_http: bool) -> str | None:
    if not isinstance(url, str) or len(url) > _MOST_URL:
        return f"an address is text of at most {_MOST_URL:,} characters"
    if not url.isascii() or any(character <= " " or character == "\x7f" for character in url):
        return "it contains characters that are not allowed in a URL; write the host in its xn-- form and encode the rest with %"
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        return str(error)
    if parts.scheme == "http" and not allow_http:
        return "it is not encrypted; use https, or allow http (WebhookOptions(allow_http=True), --allow-http)"
    if parts.scheme not in _PORTS:
        return "its scheme is not https"
    if not parts.hostname:
        return "it has no host"
    if parts.username is not None or parts.password is not None:
        return "it contains a user name or password; put credentials into headers="
    if parts.fragment:
        return "it contains a fragment (#…), which is never sent"
    return None


def host_of(url: str) -> str:
    """Returns the host of a URL."""
    return urlsplit(url).hostname or ""


def authority_of(url: str) -> str:
    """Returns host and port of a checked URL."""
    return urlsplit(url).netloc


def query_of(url: str) -> str:
    """Returns the query of a URL."""
    return urlsplit(url).query


def path_of(url: str) -> str:
    """Returns the path of a URL without leading and trailing slashes."""
    return urlsplit(url).path.strip("/")


def shown(url: str, *, path: bool = True) -> str:
    """Returns a URL for lists and logs, without user, password and query, which may be secrets. `path=False` hides the path."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port is not None else ""
    except ValueError:
        return "(unreadable)"
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    if not path:
        return f"{parts.scheme}://{host}{port}" + ("/…" if parts.path.strip("/") or parts.query else "")
    return f"{parts.scheme}://{host}{port}{parts.path}" + ("?…" if parts.query else "")


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


class Resolver:
    """Resolves host names and returns only permitted addresses; one lookup per name at a time.

    A name is refused if any of its addresses is refused: a name with public and private addresses is suspicious.
    Lookups run in separate threads. A lookup that hangs occupies a thread until the system ends it; others wait only
    when all threads are occupied.
    """

    def __init__(self, allowed: Sequence[Network] = ()) -> None:
        self._allowed = allowed
        self._threads = ThreadPoolExecutor(_LOOKUPS, "holdfast-dns")
        self._lookups: dict[tuple[str, int], asyncio.Future[list[str]]] = {}

    async def addresses(self, host: str, port: int) -> list[str]:
        """Returns the checked addresses of a host. Raises `AddressRefused` or `ConnectionError`."""
        found = [host] if _is_address(host) else await self._lookup(host, port)
        for address in found:
            if not permitted(address, self._allowed):
                raise AddressRefused(host, address)
        return found

    async def _lookup(self, host: str, port: int) -> list[str]:
        lookup = self._lookups.get((host, port))
        if lookup is None:
            loop = asyncio.get_running_loop()
            lookup = loop.run_in_executor(self._threads, _resolve, host, port)
            self._lookups[host, port] = lookup
            lookup.add_done_callback(lambda _: self._lookups.pop((host, port), None))
        return await asyncio.shield(lookup)

    def close(self) -> None:
        """Stops accepting lookups."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _resolve(host: str, port: int) -> list[str]:
    try:
        answers = getaddrinfo(host, port, type=SOCK_STREAM)
    except (gaierror, UnicodeError) as error:
        raise ConnectionError(f"{host} has no address: {error}") from error
    return list(dict.fromkeys(str(answer[4][0]) for answer in answers))
