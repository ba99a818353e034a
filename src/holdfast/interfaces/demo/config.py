"""Configuration of one demo run, passed to child processes through an environment variable."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Self

_VARIABLE = "HOLDFAST_DEMO"


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
        return cls(**json.loads(environment[_VARIABLE]))

    def to_environment(self) -> dict[str, str]:
        """The environment variable for a child process."""
        return {_VARIABLE: json.dumps(asdict(self))}
