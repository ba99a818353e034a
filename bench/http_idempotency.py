"""What an idempotency key costs a request: ours with each kind of record store, compared with asgi-idempotency-header on Redis.

`python -m bench.http_idempotency` measures in rounds, each subject in a separate process, one request after the other
through the middleware without a network between. Three figures each, in microseconds: a request without a key, with a new
key, and repeated.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from typing import Any

BODY = b'{"item": "tea", "amount": 5}'
ANSWER = json.dumps({"id": 7, "item": "tea", "amount": 5}).encode()
KINDS = ("without a key", "first", "repeated")
SUBJECTS = {
    "no middleware": (None, None),
    "holdfast on Redis": (None, "redis"),
    "holdfast on PostgreSQL": (None, "postgres"),
    "holdfast on PostgreSQL, completed by the handler": (None, "postgres"),
    "holdfast on SQLite": (None, "sqlite"),
    "asgi-idempotency-header on Redis": ("asgi-idempotency-header", "redis"),
}
"""Each with the environment it needs and the server it is measured on."""

App = Callable[[Any, Any, Any], Awaitable[Any]]


async def shop(scope: Any, receive: Any, send: Any) -> None:
    """An application that does nothing, so that what is measured is the middleware."""
    await receive()
    await send({"type": "http.response.start", "status": 201, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": ANSWER})


async def guarded(subject: str, address: str) -> App:
    """The application behind a subject's middleware. Imports belong to the environment it runs in."""
    if subject == "no middleware":
        return shop
    if subject.startswith("asgi-idempotency-header"):
        peer: Any = import_module("idempotency_header_middleware")
        backends: Any = import_module("idempotency_header_middleware.backends")
        client: Any = import_module("redis.asyncio").Redis.from_url(address)
        return peer.IdempotencyHeaderMiddleware(shop, backend=backends.RedisBackend(client))  # type: ignore[no-any-return]
    from holdfast import Holdfast, IdempotencyMiddleware
    from holdfast.idempotency.redis import RedisRecords

    if address.startswith("redis:"):
        return IdempotencyMiddleware(shop, records=RedisRecords(address), scope=lambda request: "ada")
    hf = Holdfast(address)
    hf.store.migrate()
    inner = await completing(address) if "completed" in subject else shop
    return IdempotencyMiddleware(inner, hf=hf, scope=lambda request: "ada")


async def completing(address: str) -> App:
    """The same application, storing its response in a separate transaction."""
    import psycopg

    conn = await psycopg.AsyncConnection.connect(address)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        idem = scope["state"]["idempotency"]
        async with conn.transaction():
            await idem.complete(json.loads(ANSWER), status=201, conn=conn)
        await shop(scope, receive, send)

    return app


async def call(app: App, key: str | None) -> int:
    """One request through the application; its status."""
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(BODY)).encode())]
    if key is not None:
        headers.append((b"idempotency-key", key.encode()))
    scope = {"type": "http", "method": "POST", "path": "/orders", "query_string": b"", "headers": headers}
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": BODY, "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await app(scope, receive, send)
    return statuses[0]


async def measure(subject: str, address: str, count: int) -> dict[str, float]:
    """The median of each kind, in microseconds."""
    app = await guarded(subject, address)
    for n in range(min(200, count)):
        await call(app, f"warm-{n}")
    found = {}
    for kind in KINDS:
        times = []
        for n in range(count):
            begun = time.perf_counter_ns()
            status = await call(app, None if kind == KINDS[0] else f"key-{n}")
            times.append((time.perf_counter_ns() - begun) / 1000)
            assert status == 201, f"{subject}: {status}"
        found[kind] = statistics.median(times)
    return found


def main(rounds: int = 5, count: int = 2000) -> None:
    """Measures every subject in turn, and prints the medians of the rounds with their spread."""
    from bench.environment import Missing, interpreter
    from bench.servers import Stores
    from bench.subject import Kind

    found: dict[str, list[dict[str, float]]] = {subject: [] for subject in SUBJECTS}
    with Stores() as stores:
        for _ in range(rounds):
            for subject, (environment, kind) in SUBJECTS.items():
                try:
                    python = interpreter(environment)
                except Missing as error:
                    print(f"{subject} is left out: {error}", file=sys.stderr)
                    continue
                with stores.fresh(Kind(kind or "sqlite")) as address:
                    # By its path and not as a module: the peer's environment has nothing of ours.
                    command = [str(python), str(Path(__file__)), subject, address, str(count)]
                    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
                if done.returncode:
                    print(f"{subject} failed: {done.stderr.strip()[-500:]}", file=sys.stderr)
                    continue
                found[subject].append(json.loads(done.stdout))
    print(f"{'microseconds a request':52}" + "".join(f"{kind:>26}" for kind in KINDS))
    for subject, measured in found.items():
        if measured:
            print(f"{subject:52}" + "".join(f"{_spread([one[kind] for one in measured]):>26}" for kind in KINDS))


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


if __name__ == "__main__":
    match sys.argv[1:]:
        case [subject, address, count]:
            print(json.dumps(asyncio.run(measure(subject, address, int(count)))))
        case [rounds, count]:
            main(int(rounds), int(count))
        case _:
            main()
