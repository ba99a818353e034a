"""Tasks of the tests, declared as a project declares them."""

from typing import Any

from holdfast.django.task_backend.api import _PACKAGE

if _PACKAGE == "django.tasks":
    from django.tasks import task
else:
    from django_tasks import task  # type: ignore[import-not-found,unused-ignore]

log: list[Any] = []


@task
def add(a: int, b: int = 1) -> int:
    log.append(("add", a, b))
    return a + b


@task(queue_name="mail", priority=10)
async def send(to: str) -> dict[str, str]:
    log.append(("send", to))
    return {"to": to}


@task
def fail() -> None:
    raise ValueError("no stock")


@task
def leave() -> None:
    raise SystemExit(3)


@task
def complex_value() -> Any:
    return {1, 2}


@task(takes_context=True)
def look(context: Any, n: int) -> list[Any]:
    result = context.task_result
    return [context.attempt, n, result.status, len(result.worker_ids), result.id]


@task(backend="retried", takes_context=True)
def fail_once(context: Any) -> int:
    if context.attempt == 1:
        raise ConnectionError("the first run fails")
    return int(context.attempt)


@task
def interrupt() -> None:
    raise KeyboardInterrupt("by the task")
