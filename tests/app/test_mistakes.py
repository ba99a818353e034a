"""Typical mistakes of the first hour, and the remedy that the error names."""

import uuid
from pathlib import Path

import pytest

from holdfast import ConfigurationError, Holdfast, InvalidPayload


class Basket:
    """Neither JSON nor a dataclass."""


@pytest.fixture
def hf(tmp_path: Path) -> Holdfast:
    return Holdfast(f"sqlite:///{tmp_path / 'shop.db'}")


async def test_a_publish_without_a_connection_names_both_choices(hf: Holdfast) -> None:
    remedy = "needs conn=: pass the open connection or session of your transaction, or conn=None"
    with pytest.raises(TypeError, match=remedy):
        await hf.publish("order.placed", {"id": 1})  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=remedy):
        await hf.publish_many([("order.placed", {"id": 1})])  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=remedy):
        hf.sync.publish("order.placed", {"id": 1})  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=remedy):
        hf.sync.publish_many([("order.placed", {"id": 1})])  # type: ignore[call-arg]


async def test_an_object_that_is_not_json_is_refused_with_what_to_pass_instead(hf: Holdfast) -> None:
    with pytest.raises(InvalidPayload, match=r"\$\.basket: .*Basket is not supported; pass its id or its fields"):
        await hf.publish("order.placed", {"basket": Basket()}, conn=None)


def test_the_handle_of_a_job_is_made_from_the_text_of_its_id(hf: Holdfast) -> None:
    @hf.job(result="1h")
    def total(order: int) -> int:
        return order

    id = uuid.uuid4()
    assert total.handle(str(id)).id == total.handle(id).id == id
    for wrong in ("7", 7, None):
        with pytest.raises(ConfigurationError, match="pass the id of the handle that enqueue returned"):
            total.handle(wrong)  # type: ignore[arg-type]
