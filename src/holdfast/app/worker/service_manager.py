"""Notifies systemd, or another service manager that sets NOTIFY_SOCKET, of the state of a worker."""

import asyncio
import os
import socket
from typing import Self

from holdfast._log import get_logger

log = get_logger("holdfast.worker")


class ServiceManager:
    """Sends `READY=1`, `STOPPING=1` and the pings of the watchdog; sends nothing without a service manager."""

    def __init__(self, address: str, watchdog: float | None) -> None:
        self._address, self._watchdog = address, watchdog

    @classmethod
    def from_environment(cls) -> Self:
        """Reads and removes the variables of the service manager: child processes must not notify it."""
        address = os.environ.pop("NOTIFY_SOCKET", "")
        microseconds, pid = os.environ.pop("WATCHDOG_USEC", ""), os.environ.pop("WATCHDOG_PID", "")
        asked = microseconds.isdecimal() and int(microseconds) > 0 and pid in ("", str(os.getpid()))
        return cls(address, int(microseconds) / 1_000_000 if asked else None)

    @property
    def ping_interval(self) -> float | None:
        """Seconds between pings: half of the time that the service manager allows; None without a watchdog."""
        return None if not self._address or self._watchdog is None else self._watchdog / 2

    def ready(self) -> None:
        """Reports that the app is loaded, the store was reached, and the worker starts to claim."""
        self._send("READY=1")

    def stopping(self) -> None:
        """Reports that the worker claims no more work."""
        self._send("STOPPING=1")

    def ping(self) -> None:
        """Reports that the process is alive."""
        self._send("WATCHDOG=1")

    async def keep_alive(self) -> None:
        """Pings from the event loop until cancelled, so that a loop that hangs is noticed."""
        while self.ping_interval is not None:
            self.ping()
            await asyncio.sleep(self.ping_interval)

    def _send(self, state: str) -> None:
        if not self._address:
            return
        # "@" stands for the null byte of an abstract socket.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.setblocking(False)
                channel.sendto(state.encode(), address)
        except OSError as error:
            log.warning("service manager not notified", state=state, error=str(error))
