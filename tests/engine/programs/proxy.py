"""A small TCP proxy before PostgreSQL that can go silent, go away, be slow, or lose the reply to a COMMIT.

Connections are distinguished by the `application_name` in their first message, so that one role can be hit alone.
"""

import re
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum

from tests.servers.postgres import PostgresServer

_CHUNK = 65536
_NOW = struct.pack("ii", 1, 0)
_TRICKLE = 0.2
_PREPARED = re.compile(rb"(_pg3_\d+)\0([^\0]+)\0")


class Fault(StrEnum):
    """What goes wrong with a connection."""

    SILENT = "silent"
    RESET = "reset"
    TRICKLE = "trickle"


class _Link:
    """One client with its connection to the server. Two threads pump, one each way."""

    def __init__(self, proxy: "Proxy", client: socket.socket) -> None:
        self._proxy, self._client = proxy, client
        self._server = socket.create_connection(("127.0.0.1", proxy.target), 10)
        self._server.settimeout(None)
        self.role = ""
        self.statements: dict[bytes, bytes] = {}
        """What the client has prepared on this connection, by name."""
        self._dropping = self.gone = False
        self._threads = [
            threading.Thread(target=self._pump, args=ends, daemon=True)
            for ends in ((self._client, self._server, True), (self._server, self._client, False))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def cut(self) -> None:
        """Both ends see a reset."""
        self.gone = True
        for end in (self._client, self._server):
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NOW)
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def ended(self) -> None:
        self.cut()
        for thread in self._threads:
            thread.join(10)

    def _suffer(self, data: bytes, target: socket.socket, upward: bool) -> bool:
        """What becomes of data on a connection that the fault has hit; false when the connection is to be reset."""
        match self._proxy.fault:
            case Fault.RESET:
                return False
            case Fault.TRICKLE:
                target.sendall(data[:1] if not upward else data)
                for place in range(1, 0 if upward else len(data)):
                    if self._proxy.fault is not Fault.TRICKLE or self.gone:
                        target.sendall(data[place:])
                        break
                    time.sleep(_TRICKLE)
                    target.sendall(data[place : place + 1])
                return True
            case _:
                # Permanently silent: nothing closes it, and nothing is ever answered on it again.
                while not self.gone:
                    time.sleep(0.05)
                return False

    def _pump(self, source: socket.socket, target: socket.socket, upward: bool) -> None:
        with suppress(OSError):
            while data := source.recv(_CHUNK):
                if upward and not self.role:
                    # The first message may only ask for encryption.
                    self.role = _role(data)
                self._proxy.hold(self)
                if self._proxy.strikes(self, data, upward):
                    if not self._suffer(data, target, upward):
                        break
                elif upward and self._proxy.loses(self, data):
                    if self._proxy.forwards:
                        self._dropping = True
                        target.sendall(data)
                    else:
                        break
                elif not upward and self._dropping:
                    break
                else:
                    target.sendall(data)
        self.cut()


class Proxy:
    """Forwards to one server until it is set to misbehave. Use it as a context manager."""

    def __init__(self, server: PostgresServer) -> None:
        self.target = server.port
        self._links: list[_Link] = []
        self._lock = threading.Lock()
        self._flowing = threading.Event()
        self._flowing.set()
        self._silent_role: str | None = None
        self._delay = 0.0
        self._after = self._text = b""
        self._victim: _Link | None = None
        self._refusing = False
        self._deaf: set[_Link] = set()
        self.fault: Fault | None = None
        self._marks: tuple[bytes, ...] = ()
        self._roles: tuple[str, ...] = ()
        self._struck: set[_Link] = set()
        self.struck = 0
        self.forwards = True
        self.lost = 0
        self.accepted = 0
        self._listener: socket.socket | None = None
        self.port = 0
        self._listen()

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(self, *_: object) -> None:
        self.speak()
        self._silence()
        for link in self._links:
            link.ended()

    def dsn(self, dsn: str) -> str:
        """The same database, through this proxy."""
        return dsn.replace(f":{self.target}/", f":{self.port}/")

    @contextmanager
    def away(self) -> Iterator[None]:
        """As if the server were gone: every connection is reset, and none is accepted."""
        self._silence()
        self.cut()
        try:
            yield
        finally:
            self._listen()

    @contextmanager
    def silent(self, role: str = "") -> Iterator[None]:
        """A black hole, for one role or for everybody: nothing is answered, nothing is closed."""
        self._silent_role = role
        self._flowing.clear()
        try:
            yield
        finally:
            self.speak()

    def speak(self) -> None:
        self._silent_role = None
        self._flowing.set()

    @contextmanager
    def slow(self, seconds: float) -> Iterator[None]:
        """Each message takes so much longer, both ways."""
        self._delay = seconds
        try:
            yield
        finally:
            self._delay = 0.0

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Connections are accepted, counted and reset."""
        self._refusing = True
        self.cut()
        try:
            yield
        finally:
            self._refusing = False

    @contextmanager
    def deaf(self) -> Iterator[None]:
        """Connections that are open now are never answered again; new ones are."""
        with self._lock:
            self._deaf = set(self._links)
        try:
            yield
        finally:
            self._deaf = set()

    @contextmanager
    def faulty(self, fault: Fault, *, statements: Sequence[str] = (), roles: Sequence[str] = ()) -> Iterator[None]:
        """Connections of these roles, and those that send one of these statements, are hit, new ones too.

        A connection that became silent stays silent; one that trickled recovers when the block ends.
        """
        self._marks, self._roles = tuple(text.encode() for text in statements), tuple(roles)
        self.fault = fault
        try:
            yield
        finally:
            self.fault = None

    def strikes(self, link: _Link, data: bytes, upward: bool) -> bool:
        """Whether the fault hits this connection, from now on."""
        with self._lock:
            if upward:
                link.statements |= _PREPARED.findall(data)
            if self.fault is not None and link not in self._struck:
                said = self._statements(link, data) if upward else ()
                if link.role in self._roles or any(mark in text for mark in self._marks for text in said):
                    self._struck.add(link)
                    self.struck += 1
            return link in self._struck and self.fault is not None

    def _statements(self, link: _Link, data: bytes) -> tuple[bytes, ...]:
        """What the client sends here, with the text of the statements that it executes by name."""
        return (data, *(text for name, text in link.statements.items() if name + b"\0" in data))

    def lose_commit(self, after: str, *, forward: bool) -> None:
        """The next COMMIT that follows this text is lost: its reply, or the COMMIT itself if it is not forwarded."""
        self._victim, self._after, self._text, self.forwards = None, after.encode(), b"COMMIT", forward

    def lose(self, text: str, *, forward: bool) -> None:
        """The next statement with this text is lost: its reply, or the statement itself if it is not forwarded."""
        self._victim, self._after, self._text, self.forwards = None, b"", text.encode(), forward

    def lose_nothing(self) -> None:
        """Takes back what was to be lost and was not sent."""
        with self._lock:
            self._after = self._text = b""

    def cut(self) -> None:
        with self._lock:
            links, self._links = self._links, []
        for link in links:
            link.ended()

    def hold(self, link: _Link) -> None:
        """Keeps back what this link has to say, for as long as it must."""
        if self._delay:
            time.sleep(self._delay)
        while link in self._deaf and not link.gone:
            time.sleep(0.05)
        while not self._flowing.is_set() and not link.gone and self._silent_role in ("", link.role):
            self._flowing.wait(0.05)

    def loses(self, link: _Link, data: bytes) -> bool:
        """Whether this is what is to be lost."""
        with self._lock:
            if self._after and self._after in data:
                self._after, self._victim = b"", link
            if not self._text or self._after or self._victim not in (None, link):
                return False
            if not any(self._text in text for text in self._statements(link, data)):
                return False
            self._text = b""
            self.lost += 1
            return True

    def _listen(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(128)
        self._listener, self.port = listener, listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, args=(listener,), daemon=True)
        self._accepting.start()

    def _silence(self) -> None:
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
            self._accepting.join(10)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self.accepted += 1
            if self._refusing:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NOW)
                client.close()
                continue
            try:
                link = _Link(self, client)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._links.append(link)
            link.start()


def _role(data: bytes) -> str:
    _, found, rest = data.partition(b"application_name\0")
    return rest.partition(b"\0")[0].decode(errors="replace") if found else ""
