"""Configuration of one demo run, passed to child processes through environment variables."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Self

_PREFIX = "HOLDFAST_DEMO_"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoConfig:
    """The demo's store, the ports of the outside services, and the release of the shop that runs."""

    dsn: str
    schema: str
    mail_port: int
    webhook_port: int
    release: int = 0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """The configuration that this process was started with."""
        return cls(
            dsn=environment[f"{_PREFIX}DSN"],
            schema=environment[f"{_PREFIX}SCHEMA"],
            mail_port=int(environment[f"{_PREFIX}MAIL_PORT"]),
            webhook_port=int(environment[f"{_PREFIX}WEBHOOK_PORT"]),
            release=int(environment[f"{_PREFIX}RELEASE"]),
        )

    def to_environment(self) -> dict[str, str]:
        """Environment variables for a child process."""
        return {f"{_PREFIX}{name.upper()}": str(value) for name, value in asdict(self).items()}
