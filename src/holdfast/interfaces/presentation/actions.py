"""Every operator action, once. API routes, console forms and CLI commands are made from this table.

An action calls one method of `ops` with its arguments, the actor, the reason and its fields. The method writes the audit
entry. A new row is a new route, form and command; each front end has its own way to read fields, see `FieldKind`.
"""

from collections.abc import Mapping
from typing import Any

from holdfast.interfaces.presentation.operator_action import ActionField, FieldKind, OperatorAction, Resource
from holdfast.interfaces.presentation.operator_action import new_action as _action
from holdfast.ops.resources.schedules import ScheduleState
from holdfast.stores.admin.token import Scope
from holdfast.stores.messages.publish import Published

QUEUES = Resource("queue", "queue", "/queues", "/queues", "queues")
CONSUMERS = Resource("consumer", "consumer", "/consumers", "/consumers", "consumers")
SCHEDULES = Resource("schedule", "schedule", "/schedules", "/schedules", "schedules")
WEBHOOKS = Resource("webhook endpoint", "webhook", "/webhooks", "/webhooks", "webhooks")
BREAKERS = Resource("circuit", "breaker", "/breakers", "/breakers", "breakers")
KEYS = Resource("idempotency key", "idempotency_key", "/idempotency-keys", "/keys", "idempotency")
RUNS = Resource("run", "run", "/workflow-runs", "/workflows", "workflows", "/workflows/{id}")
JOB_GROUPS = Resource("group", "job_group", "/job-groups", "/job-groups", "groups", "/job-groups/{id}")
TOKENS = Resource("token", "token", "/tokens", "", "tokens")


def _subscriptions(given: Mapping[str, Any]) -> str:
    name, pattern = given["name"], given["pattern"]
    return f"the subscription of {name} to {pattern}" if pattern else f"all subscriptions of {name}"


_KEY = ActionField("key", FieldKind.TEXT, "Idempotency key: the command is stored once per key.")
_SCHEDULE_FIELDS = (
    ActionField("job", FieldKind.TEXT, "Name of the job.", required=True),
    ActionField("args", FieldKind.JSON, "Arguments of the job by name, as a JSON object.  [default: {}]"),
    ActionField("cron", FieldKind.TEXT, "Run at each occurrence of this expression, such as '0 7 * * *'."),
    ActionField("every", FieldKind.TEXT, "Run at this interval from now on, such as 90m."),
    ActionField("at", FieldKind.TEXT, "Run once at this time, such as 2026-12-24T18:00Z."),
    ActionField("tz", FieldKind.TEXT, "Time zone of the expression.  [default: UTC]"),
    ActionField("missed", FieldKind.TEXT, "Runs missed while no worker ran: last, all or skip.  [default: last]"),
)
_FLOW_FIELDS = (
    ActionField("limit", FieldKind.NUMBER, "New limit: how many deliveries run at once."),
    ActionField("rate", FieldKind.TEXT, "New rate: a count and a window, such as 90/10s."),
    ActionField("reset", FieldKind.FLAG, "Return to the declared values first; then apply the given ones."),
)
_FLOW_TEXTS = {
    "fields": _FLOW_FIELDS,
    "effect": "Workers use the new values within about a second. A deploy keeps them until they are reset.",
    "label": "Change limits",
    "shown": ("limit", "rate"),
}


def _key_action(verb: str, **more: Any) -> OperatorAction:
    return _action(
        CONSUMERS,
        f"{verb}-key",
        method=f"{verb}_key",
        arguments=("consumer", "key"),
        summary=f"{verb.capitalize()} one key of a consumer",
        label=verb.capitalize(),
        page="/flow",
        **more,
    )


_UNTIL_RESUMED = "Running deliveries finish. No new deliveries start until you resume it."

ACTIONS = (
    _action(
        QUEUES,
        "pause",
        fields=(ActionField("force", FieldKind.FLAG, "Pause it even if no consumer or job uses it yet."),),
        unchanged="queue {name} was already paused",
        effect=_UNTIL_RESUMED,
        help="Pause a queue: workers claim nothing from it until it is resumed. Running handlers finish.",
        undo="resume",
    ),
    _action(
        QUEUES,
        "resume",
        unchanged="queue {name} was not paused",
        help="Resume a queue.",
    ),
    _action(
        QUEUES,
        "limit",
        summary="Change the limit or rate of a queue",
        done="limits of queue {name} changed",
        unchanged="the limits of queue {name} already had these values",
        help="Change the limit or rate that a queue declares, or return to the declared one. Needs no deploy. A queue that declares "
        "none can only be paused.",
        **_FLOW_TEXTS,
    ),
    _action(
        CONSUMERS,
        "pause",
        unchanged="consumer {name} was already paused",
        effect=_UNTIL_RESUMED,
        help="Pause a consumer: workers start no new runs. Running handlers finish.",
        undo="resume",
    ),
    _action(CONSUMERS, "resume", unchanged="consumer {name} was not paused"),
    _action(
        CONSUMERS,
        "unblock",
        summary="Unblock a consumer immediately",
        done="consumer {name} unblocked",
        unchanged="consumer {name} was not blocked",
        effect="Workers try one delivery of this consumer from time to time. This lets it run now.",
    ),
    _action(
        CONSUMERS,
        "retire",
        scope=Scope.ADMIN,
        fields=(ActionField("pattern", FieldKind.TEXT, "End only this subscription.  [default: all subscriptions]"),),
        result=list[str],
        summary="End a consumer's subscriptions",
        done="ended subscriptions of consumer {name}: {result}",
        label="",
        help="End a consumer's subscriptions: it receives no new messages. Existing deliveries still run.",
        confirm=_subscriptions,
        confirm_verb="end",
    ),
    _action(
        CONSUMERS,
        "limit",
        summary="Change the limit or rate of a consumer",
        done="limits of consumer {name} changed",
        unchanged="the limits of consumer {name} already had these values",
        help="Change the limit or rate that a consumer declares, or return to the declared one. Needs no deploy. A consumer that "
        "declares none can only be paused.",
        page="/flow",
        **_FLOW_TEXTS,
    ),
    _key_action(
        "pause",
        fields=(ActionField("force", FieldKind.FLAG, "Pause it even if no delivery has this key."),),
        done="key {key} of consumer {consumer} paused",
        unchanged="key {key} of consumer {consumer} was already paused",
        effect="Running deliveries of this key finish. No new ones start until you resume it.",
        help="Pause one key of a consumer: workers claim none of its deliveries. Other keys continue.",
        undo="resume-key",
    ),
    _key_action(
        "resume",
        done="key {key} of consumer {consumer} resumed",
        unchanged="key {key} of consumer {consumer} was not paused",
        help="Resume one key of a consumer.",
    ),
    _action(
        SCHEDULES,
        "pause",
        effect="No runs start until you resume it.",
        help="Pause a schedule: it enqueues no runs until it is resumed.",
        undo="resume",
    ),
    _action(
        SCHEDULES,
        "resume",
        unchanged="schedule {name} was not paused",
        help="Resume a schedule. Its missed= policy decides about runs missed during the pause.",
    ),
    _action(
        SCHEDULES,
        "put",
        fields=_SCHEDULE_FIELDS,
        result=ScheduleState,
        summary="Add or change a run-time schedule",
        done="schedule {name} stored",
        label="Change",
        effect="Workers use the new values within about a second. A new cron, interval or time starts now.",
        help="Add or change a run-time schedule of JOB, with one of --cron, --every and --at. Workers check the arguments when "
        "the job runs.",
    ),
    _action(
        SCHEDULES,
        "remove",
        done="schedule {name} removed",
        effect="It enqueues no more jobs. Jobs that it already enqueued stay.",
        is_dangerous=True,
        help="Remove a run-time schedule, or one of @hf.cron that no running worker declares. Jobs that it enqueued stay.",
        confirm=lambda given: f"schedule {given['name']}",
    ),
    _action(
        SCHEDULES,
        "run",
        result=Published,
        summary="Run the job of a schedule once, now",
        done="run of {name} enqueued",
        label="Run now",
        effect="Starts one extra run. Scheduled runs are not affected.",
        help="Enqueue one run now, in addition to the scheduled ones.",
    ),
    _action(
        WEBHOOKS,
        "disable",
        scope=Scope.ADMIN,
        needs_reason=True,
        arguments=("id",),
        summary="Disable a webhook endpoint and hold its deliveries",
        done="endpoint {id} disabled",
        unchanged="endpoint {id} was already disabled",
        effect="Nothing more is sent to it. Waiting deliveries are held.",
        is_dangerous=True,
        help="Disable an endpoint: it gets no new deliveries, and existing ones are held.",
        undo="enable",
    ),
    _action(
        WEBHOOKS,
        "enable",
        scope=Scope.ADMIN,
        arguments=("id",),
        done="endpoint {id} enabled",
        unchanged="endpoint {id} was not disabled",
        effect="It receives held deliveries and new events.",
        help="Enable an endpoint: it gets its held deliveries and new events.",
    ),
    _action(
        BREAKERS,
        "reset",
        summary="Close a circuit",
        done="circuit {name} closed",
        unchanged="circuit {name} was already closed and had no failures",
        label="Close",
        effect="Calls are allowed again immediately and the failure count is reset.",
        help="Close a circuit and reset its failure count.",
    ),
    _action(
        BREAKERS,
        "trip",
        fields=(
            ActionField("duration", FieldKind.DURATION, "Time that it stays open.", "1h"),
            ActionField("force", FieldKind.FLAG, "Open it even if no circuit of this name has failed yet."),
        ),
        summary="Open a circuit for a given time",
        done="circuit {name} opened for {duration}",
        label="Open",
        effect="Calls are rejected and their deliveries are parked until this time is over.",
        is_dangerous=True,
        help="Open a circuit: calls fail immediately and deliveries are parked until the time is over and a probe succeeds.",
        undo="reset",
    ),
    _action(
        KEYS,
        "release",
        scope=Scope.ADMIN,
        arguments=("scope", "key"),
        fields=(
            ActionField("force", FieldKind.FLAG, "Also release a completed key. Its effect can then happen again."),
        ),
        summary="Release an idempotency key",
        done="key {key} of {scope} released (was {result}); the next request with it is executed",
        effect="The next request with this key runs again.",
        is_dangerous=True,
        help="Release a key so that it can be used again. A request that holds it can no longer complete.",
    ),
    _action(
        RUNS,
        "signal",
        arguments=("id",),
        fields=(
            ActionField("signal", FieldKind.TEXT, "Name of the signal.", required=True),
            ActionField("payload", FieldKind.JSON, "Value that the waiting step gets, as JSON.  [default: null]"),
            _KEY,
            ActionField(
                "force",
                FieldKind.FLAG,
                "Send it although the run waits for a similar name, or the payload does not fit.",
            ),
        ),
        summary="Send a signal to a run",
        done="signal {signal} stored for run {id}; a worker delivers it",
        unchanged="run {id} has a signal {signal} with this key; nothing was stored",
        label="Send signal",
        effect="A step that waits for this signal continues. Without such a step, the next wait of this name gets it.",
        help="Send a signal to a run. A step that waits for it continues. With --app, the type of the payload is checked first.",
    ),
    _action(
        RUNS,
        "trigger",
        arguments=("id",),
        fields=(ActionField("step", FieldKind.TEXT, "Name of the manual step.", required=True), _KEY),
        summary="Trigger a manual step of a run",
        done="trigger of step {step} stored for run {id}; a worker applies it",
        unchanged="step {step} of run {id} has a trigger with this key; nothing was stored",
        label="Trigger step",
        effect="The manual step starts when the steps before it are done.",
        help="Trigger a manual step. It starts when the steps before it are done.",
    ),
    _action(
        RUNS,
        "retry",
        arguments=("id",),
        fields=(
            ActionField(
                "step",
                FieldKind.TEXT,
                "Run this step and all after it again.  [default: the steps that failed]",
                alias="from",
            ),
        ),
        summary="Retry a run",
        done="retry of run {id} stored",
        unchanged="run {id} has no failed step",
        label="Retry",
        effect="The steps that failed run again with new attempts. Completed steps are not repeated.",
        help="Run the failed steps of a run again, or a step and all after it. Other completed steps are not repeated.",
    ),
    _action(
        RUNS,
        "cancel",
        arguments=("id",),
        summary="Cancel a run and its child runs",
        done="cancellation of run {id} stored; a worker applies it",
        label="Cancel run",
        effect="Steps that have not started are discarded, and running ones cannot complete. Undo steps do not run.",
        is_dangerous=True,
        help="Cancel a run and its child runs, without undo steps. Running steps can no longer complete.",
        confirm=lambda given: f"run {given['id']}",
    ),
    _action(
        RUNS,
        "fork",
        arguments=("id",),
        fields=(
            ActionField("step", FieldKind.TEXT, "Name of the step that the new run begins with.", required=True),
            ActionField("key", FieldKind.TEXT, "Idempotency key: the run is forked once per key."),
        ),
        result=Published,
        summary="Fork a run from a step",
        done="run {id} forked from step {step}: the new run is {result.id}",
        label="Fork",
        effect="Starts a new run of the same version with the results of the steps before this one. The effects of this step and of "
        "all steps after it happen again. This run is not changed.",
        is_dangerous=True,
        help="Start a new run that begins at a step, with the results of the steps before it. The run itself is not changed.",
        confirm=lambda given: f"run {given['id']} from step {given['step']}",
    ),
    _action(
        JOB_GROUPS,
        "cancel",
        arguments=("id",),
        done="group {id} cancelled",
        unchanged="all jobs of group {id} have ended",
        effect="Jobs that have not started are discarded, and running ones cannot complete. The job after them does not run.",
        is_dangerous=True,
        help="Cancel the unfinished jobs of a group and the jobs after them. Running jobs can no longer complete.",
        confirm=lambda given: f"group {given['id']}",
    ),
    _action(
        TOKENS,
        "revoke",
        scope=Scope.ADMIN,
        arguments=("token",),
        summary="Revoke a token, by id or name",
        done="token {token} revoked",
        label="",
        help="Revoke a token immediately, by id or name.",
    ),
)
