"""What the page about publishing says of transactions that are not committed and of events without a consumer."""

import json
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from holdfast import Holdfast, event
from tests.servers.postgres import PostgresServer
from tests.support.worker import drain, query

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "publish.md").read_text(encoding="utf-8")


@event("order.placed")
@dataclass
class OrderPlaced:
    order_id: int
    email: str


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str]


class OpenSession(AsyncSession):
    """Remembers the sessions, because the example leaves a transaction open."""

    made: ClassVar[list[AsyncSession]] = []

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.made.append(self)


def _blocks(heading: str, language: str) -> list[str]:
    _, _, rest = PAGE.partition(f"\n## {heading}\n")
    return re.findall(rf"```{language}\n(.*?)```", rest.partition("\n## ")[0], re.DOTALL)


async def test_only_the_event_before_the_commit_is_stored(tmp_path: Path) -> None:
    hf = Holdfast(f"sqlite:///{tmp_path / 'shop.db'}")
    hf.store.migrate()
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}")
    async with engine.begin() as conn:
        await conn.run_sync(Base.metadata.create_all)
    factory = async_sessionmaker(engine, class_=OpenSession)
    names: dict[str, Any] = {"hf": hf, "Session": factory, "Order": Order, "OrderPlaced": OrderPlaced}
    examples = _blocks("Publish before the commit", "python")
    assert "".join(examples).count("hf.publish(") == 3
    for example in examples:
        exec(f"async def run():\n{textwrap.indent(example, '    ')}", names)  # noqa: S102
        await names["run"]()
        for session in OpenSession.made:
            await session.close()
    await engine.dispose()
    stored = [json.loads(message.payload) for message in await hf.ops.messages()]
    assert stored == [{"order_id": 1, "email": "ada@example.com"}]
    await hf.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgres18"])
async def test_the_query_for_events_without_a_consumer_finds_a_misspelled_name(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    (text,) = _blocks("Events without a consumer", "sql")
    if kind == "sqlite":
        hf = Holdfast(f"sqlite:///{tmp_path / 'shop.db'}")
        assert "`holdfast_message` and `holdfast_delivery`" in PAGE
        text = text.replace("holdfast.", "holdfast_")
    else:
        server: PostgresServer = request.getfixturevalue(kind)
        hf = Holdfast(server.create_database("unsubscribed"))
    hf.store.migrate()

    @hf.consumer("order.placed")
    def bill(order: dict[str, int]) -> None: ...

    await hf.publish("order.placed", {"order_id": 1}, conn=None)
    await hf.publish("order.place", {"order_id": 2}, conn=None)
    await hf.publish("order.place", {"order_id": 3}, conn=None)
    found = await query(hf, text)
    assert [tuple(row)[:2] for row in found] == [("order.place", 2)]

    @hf.consumer("order.place", name="late")
    def late(order: dict[str, int]) -> None: ...

    await drain(hf)
    assert await query(hf, text) == []
    await hf.close()
