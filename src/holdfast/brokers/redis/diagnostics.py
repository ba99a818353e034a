"""Settings of a Redis server that can lose records."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from holdfast.brokers.redis.connection import broker_errors, connect

if TYPE_CHECKING:
    from holdfast.brokers.redis.stream import RedisStream


async def durability_warnings(stream: "RedisStream") -> list[str]:
    """Reads the settings of the server and checks them."""
    async with connect(stream) as client:
        with broker_errors(stream.name):
            try:
                found = {**await client.config_get("append*"), **await client.config_get("maxmemory*")}
            except Exception as error:
                if "connect" in type(error).__name__.lower():
                    raise
                return [f"{stream.name}: its settings cannot be read ({error}); ask its operator about appendonly"]
    settings = {str(name): str(value) for name, value in found.items()}
    return [f"{stream.name}: {warning}" for warning in _check_settings(settings)]


def _check_settings(settings: Mapping[str, str]) -> Iterator[str]:
    if settings.get("appendonly") == "no":
        yield "appendonly is off: a crash of Redis loses every record since its last snapshot; set appendonly yes"
    elif (fsync := settings.get("appendfsync")) in ("no", "everysec"):
        lost = "about 30 seconds" if fsync == "no" else "up to two seconds"
        yield f"appendfsync is {fsync}: a crash of the machine loses {lost} of acknowledged records; set it to always"
    policy = settings.get("maxmemory-policy", "noeviction")
    if settings.get("maxmemory", "0") != "0" and policy.startswith("allkeys"):
        yield f"maxmemory-policy is {policy}: a full Redis deletes whole streams; set it to noeviction"
