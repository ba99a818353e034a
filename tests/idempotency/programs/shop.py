"""A shop behind a real server: one row for each order, and steps at which its process crashes on request.

A file in the folder `MARKS` names the place; the process that gets there first takes the file and dies.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import sqlalchemy as sa
from fastapi import FastAPI, Request
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool

from holdfast import Holdfast, IdempotencyKey, IdempotencyMiddleware, begin_immediate

MARKS = Path(os.environ["MARKS"])
DSN = os.environ["HOLDFAST_DSN"]
URL = DSN.replace("sqlite:", "sqlite+aiosqlite:", 1).replace("postgresql:", "postgresql+asyncpg:", 1)

hf = Holdfast(DSN)
engine = create_async_engine(URL, poolclass=NullPool)
if DSN.startswith("sqlite:"):
    begin_immediate(engine)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with hf.lifespan(app):
        yield
    await engine.dispose()


api = FastAPI(lifespan=lifespan)
api.add_middleware(
    IdempotencyMiddleware,
    hf=hf,
    scope=lambda request: request.headers.get("x-tenant"),
    lease=os.environ.get("LEASE", "1s"),
)


def die_at(place: str) -> None:
    try:
        (MARKS / place).unlink()
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


class NewOrder(BaseModel):
    item: str


class OrderOut(BaseModel):
    id: int
    item: str


@api.post("/orders", status_code=201)
async def create(body: NewOrder, idem: IdempotencyKey) -> OrderOut:
    """The business write, the event and the answer: one commit."""
    die_at("reserved")
    async with AsyncSession(engine) as session, session.begin():
        insert = sa.text("insert into orders (tenant, item) values (:tenant, :item) returning id")
        id = (await session.execute(insert, {"tenant": idem.scope, "item": body.item})).scalar_one()
        await hf.publish("order.placed", {"order_id": id}, conn=session)
        await asyncio.sleep(0.02)
        answer = await idem.complete(OrderOut(id=id, item=body.item), status=201, conn=session)
        die_at("completing")
    die_at("committed")
    return answer


@api.get("/who")
async def who(request: Request) -> int:
    return os.getpid()
