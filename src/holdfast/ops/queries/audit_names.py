"""The names in a filter of the audit log, checked when no entry matches."""

from uuid import UUID

from holdfast.core.errors import NotFound
from holdfast.ops.queries.filter_names import check_filter, unknown_name
from holdfast.ops.steps import TaskSteps, transact
from holdfast.stores.admin import plan as stored
from holdfast.stores.admin.actions import audit
from holdfast.stores.admin.audit import AuditFilter, audit_page
from holdfast.stores.integrations.breaker import breakers
from holdfast.stores.queries.query import Filter, deliveries

AUDITED_ACTIONS = frozenset(
    {
        *(
            "abandon",
            "add",
            "block",
            "cancel",
            "catch-up",
            "create",
            "disable",
            "discard",
            "enable",
            "enqueue",
            "finish",
        ),
        *("fork", "limit", "pause", "pause-key", "prune", "publish", "put", "rebuild", "rebuilt", "refused", "release"),
        *("remove", "replay", "reset", "resume", "resume-key", "retire", "retry", "revoke", "rotate-secret"),
        *("rotate_encryption", "run", "save", "signal", "start", "test", "trigger", "trip", "unblock"),
    }
)
AUDITED_KINDS = frozenset(
    {
        *("api", "breaker", "console", "consumer", "delivery", "group", "idempotency key", "message", "plan"),
        *("projector", "queue", "run", "schedule", "store", "token", "webhook"),
    }
)


def check_audit_filter(*, action: str | None = None, target: tuple[str, str] | None = None) -> TaskSteps[None]:
    """Raises `NotFound` for an action that Holdfast does not record, and for a target that does not exist.

    A target with entries exists. Without entries, a delivery, plan, consumer, queue or circuit is searched in the store.
    """
    if (
        action is not None
        and action not in AUDITED_ACTIONS
        and not (yield from transact(audit_page(AuditFilter(action=action), 1)))
    ):
        raise unknown_name("action", action, AUDITED_ACTIONS)
    if target is None or (yield from transact(audit(1, target=target))):
        return
    kind, name = target
    if kind not in AUDITED_KINDS:
        if not (yield from transact(audit_page(AuditFilter(kind=kind), 1))):
            raise unknown_name("kind of target", kind, AUDITED_KINDS)
    else:
        yield from _check_target(kind, name)


def _check_target(kind: str, name: str) -> TaskSteps[None]:
    match kind:
        case "queue":
            yield from check_filter(Filter(queue=name))
        case "consumer":
            yield from check_filter(Filter(consumers=(name,)))
        case "breaker":
            known = [one.name for one in (yield from transact(breakers()))]
            if name not in known:
                raise unknown_name("circuit", name, known)
        case "plan" | "delivery":
            try:
                id = UUID(name)
            except ValueError:
                raise NotFound(kind, name, "an id is a UUID") from None
            if kind == "plan":
                yield from transact(stored.plan(id))
            elif not (yield from transact(deliveries(Filter(ids=(id,)), 1))):
                raise NotFound("delivery", id)
        case _:
            pass
