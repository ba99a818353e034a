"""Keys of flow control that are secrets are refused when the handler is declared."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import Holdfast, Limit, Rate, Router, event
from holdfast.core.errors import ConfigurationError


@event("user.signed_up", redact=["email", "address.*", "**.token"])
@dataclass
class SignedUp:
    email: str
    address: dict[str, str]
    tenant: str


async def handle(_: SignedUp) -> None: ...


async def handle_any(_: dict[str, Any]) -> None: ...


async def send(email: str, tenant: str) -> None: ...


@pytest.mark.parametrize(
    "by", ["email", "address.city", "address", "address.city.zip", "tenant.token", "header:authorization"]
)
@pytest.mark.parametrize("option", ["limit", "rate", "order_by", "fair_by", "debounce"])
def test_a_secret_of_the_event_class_is_no_key(option: str, by: str) -> None:
    options: dict[str, Mapping[str, Any]] = {
        "limit": {"limit": Limit(1, by=by)},
        "rate": {"rate": Rate("1/s", by=by)},
        "debounce": {"debounce": "1s", "by": by},
    }
    hf = Holdfast("sqlite:///unused.db")
    with pytest.raises(ConfigurationError, match=r"operators can see keys.*a function that returns a hash"):
        hf.consumer(SignedUp, **options.get(option, {option: by}))(handle)
    assert not hf.handlers


def test_a_secret_of_the_app_is_no_key() -> None:
    hf = Holdfast("sqlite:///unused.db", redact=["**.email"])
    router = Router()
    router.consumer("user.*", order_by="email")(handle_any)
    redacted = r"by 'email' is redacted by '\*\*.email'"
    with pytest.raises(ConfigurationError, match=f"job send: {redacted}"):
        hf.job(order_by="email")(send)
    with pytest.raises(ConfigurationError, match=f"consumer handle_any: {redacted}"):
        hf.consumer("user.*", order_by="email")(handle_any)
    with pytest.raises(ConfigurationError, match=f"consumer handle_any: {redacted}"):
        hf.include(router)


def test_other_fields_and_a_hash_of_a_secret_are_keys() -> None:
    hf = Holdfast("sqlite:///unused.db", redact=["**.password"])
    hf.consumer(SignedUp, name="by_tenant", order_by="tenant")(handle)
    hf.consumer(SignedUp, name="by_header", order_by="header:tenant")(handle)
    hf.consumer(SignedUp, name="by_hash", order_by=lambda payload: str(hash(payload["email"])))(handle)
    hf.job(order_by="email")(send)
    assert len(hf.handlers) == 4
