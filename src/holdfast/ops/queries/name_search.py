"""Items that are found by their names: consumers, queues, schedules, webhook endpoints, circuits and workflow runs."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from holdfast.ops.steps import TaskSteps, transact
from holdfast.outbound.webhooks.ssrf import shown
from holdfast.stores.integrations.breaker import breakers
from holdfast.stores.integrations.webhook import listed_endpoints
from holdfast.stores.messages.registry import consumers
from holdfast.stores.messages.schedule import schedules
from holdfast.stores.queries.query import subscriptions
from holdfast.stores.workflows.run_page import RunFilter, run_page

_OF_A_KIND = 10
_SCHEDULES = 500


class ItemKind(StrEnum):
    """What has a name."""

    CONSUMER = "consumer"
    QUEUE = "queue"
    SCHEDULE = "schedule"
    WEBHOOK = "webhook"
    BREAKER = "breaker"
    WORKFLOW_RUN = "workflow_run"


@dataclass(frozen=True, slots=True)
class NamedItem:
    """An item that contains the text in its name or in `text`, which describes it."""

    kind: ItemKind
    name: str
    text: str


def named_items(needle: str) -> TaskSteps[list[NamedItem]]:
    """The items that contain a text, ignoring case; at most ten of a kind.

    Of schedules, it reads those whose name starts with the text, those of the job with this name, and the first 500.
    Workflow runs are found by their whole key.
    """
    known = yield from transact(consumers())
    endpoints = yield from transact(listed_endpoints())
    patterns: dict[str, list[str]] = {}
    for one in (yield from transact(subscriptions())):
        patterns.setdefault(one.consumer, []).append(one.pattern)
    own = {one.consumer for one in endpoints}
    found = [
        *_of(
            ItemKind.CONSUMER,
            needle,
            ((one.name, " ".join(patterns.get(one.name, ["job"]))) for one in known if one.name not in own),
        ),
        *_of(ItemKind.QUEUE, needle, ((name, "") for name in sorted({one.queue for one in known}))),
        *_of(
            ItemKind.WEBHOOK,
            needle,
            # Without the path, which may be a secret.
            (
                (one.id, f"{shown(one.url, path=False)} {' '.join(one.events)} {one.tenant or ''}".strip())
                for one in endpoints
            ),
        ),
        *_of(ItemKind.BREAKER, needle, ((one.name, "") for one in (yield from transact(breakers())))),
    ]
    stored = [
        *(yield from transact(schedules(prefix=needle, limit=_OF_A_KIND))),
        *(yield from transact(schedules(job=needle, limit=_OF_A_KIND))),
        *(yield from transact(schedules(limit=_SCHEDULES))),
    ]
    found += _of(ItemKind.SCHEDULE, needle, {one.name: one.job for one in stored}.items())
    runs = (yield from transact(run_page(RunFilter(key=needle), _OF_A_KIND))).items
    found += [NamedItem(ItemKind.WORKFLOW_RUN, str(one.run.id), f"{one.run.workflow} {one.run.key}") for one in runs]
    return found


def _of(kind: ItemKind, needle: str, items: Iterable[tuple[str, str]]) -> Iterator[NamedItem]:
    matching = (NamedItem(kind, name, text) for name, text in items if needle.lower() in f"{name} {text}".lower())
    for _, one in zip(range(_OF_A_KIND), matching, strict=False):
        yield one
