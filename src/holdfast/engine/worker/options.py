"""The options of a worker."""

import os
import secrets
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from holdfast.core.errors import ConfigurationError
from holdfast.core.message import check_generation
from holdfast.core.values.arguments import checks_init_options
from holdfast.core.values.duration import to_timedelta

if TYPE_CHECKING:
    from holdfast.engine.handlers.handler import Handler


@checks_init_options
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How a worker behaves. `queues` maps a queue to its slots; without it one pool of slots serves every queue."""

    queues: Mapping[str, int] | None = None
    concurrency: int = 50
    generation: int = 0
    lease: timedelta = timedelta(seconds=30)
    poll: timedelta = timedelta(milliseconds=200)
    grace: timedelta = timedelta(seconds=30)
    until_idle: bool = False
    idle_limit: timedelta = timedelta(minutes=1)
    suspects: bool = False
    """Run only suspect deliveries, one at a time: the child process of another worker."""
    cron: bool = True
    metrics_port: int = 0
    """Port that serves Prometheus metrics; 0 for none. A second process uses the next port."""
    metrics_host: str = "127.0.0.1"
    max_deliveries: int | None = None
    """Stop after about this many settled deliveries; `holdfast worker` then starts a fresh process."""
    max_memory: int | None = None
    """Stop when the process uses this many bytes of memory; `holdfast worker` then starts a fresh process."""

    def __post_init__(self) -> None:
        if self.queues is not None and (not isinstance(self.queues, Mapping) or not self.queues):
            raise ConfigurationError(
                f"queues is {self.queues!r}; give a dict of slots by queue, such as {{'mail': 10}}"
            )
        for name, slots in {"concurrency": self.concurrency, **(self.queues or {})}.items():
            if isinstance(slots, bool) or not isinstance(slots, int) or not 1 <= slots <= 10_000:
                raise ConfigurationError(f"{name} has {slots!r} slots; give 1 to 10,000")
        for name, most in (("max_deliveries", self.max_deliveries), ("max_memory", self.max_memory)):
            if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
                raise ConfigurationError(f"{name} is {most!r}; give a whole number of 1 or more")
        for name in ("lease", "poll", "grace", "idle_limit"):
            object.__setattr__(self, name, to_timedelta(getattr(self, name), name=name))
        check_generation(self.generation)
        if self.lease < timedelta(seconds=1):
            raise ConfigurationError(f"a lease of {self.lease} is too short to be renewed in time; give 1 s or more")

    @property
    def recycles(self) -> bool:
        """Whether the worker ends at a limit."""
        return self.max_deliveries is not None or self.max_memory is not None


def consumers_of(queues: Collection[str], handlers: Mapping[str, "Handler"]) -> list[str]:
    """The consumers whose queue is one of `queues`, by default all; `using(queue=...)` adds jobs of others."""
    return sorted(name for name, handler in handlers.items() if not queues or handler.queue in queues)


def instance_id() -> str:
    """A unique, readable name for this worker instance: host, process id, random suffix."""
    host = socket.gethostname().split(".")[0][:30] or "host"
    return f"{host}/{os.getpid()}/{secrets.token_hex(3)}"
