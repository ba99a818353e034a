"""Where one run of the demo takes place; child processes are told through their environment."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Self

_PREFIX = "HOLDFAST_DEMO_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The store of the demo, the ports of the world around the shop, and which release of the shop runs."""

    dsn: str
    schema: str
    mail_port: int
    webhook_port: int
    release: int = 0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """The place this process was started for."""
        return cls(
            dsn=environment[f"{_PREFIX}DSN"],
            schema=environment[f"{_PREFIX}SCHEMA"],
            mail_port=int(environment[f"{_PREFIX}MAIL_PORT"]),
            webhook_port=int(environment[f"{_PREFIX}WEBHOOK_PORT"]),
            release=int(environment[f"{_PREFIX}RELEASE"]),
        )

    def to_environment(self) -> dict[str, str]:
        """What a child process needs to find its way here."""
        return {f"{_PREFIX}{name.upper()}": str(value) for name, value in asdict(self).items()}
