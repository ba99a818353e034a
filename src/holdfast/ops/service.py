"""`hf.ops`: all tasks of operators, awaited here and blocking under `.sync`."""

# The modules have a prefix because the class has attributes of the same names.
from holdfast.ops import encryption as _encryption
from holdfast.ops import maintenance as _upkeep
from holdfast.ops import plans as _plans
from holdfast.ops.doctor import doctor as _doctor
from holdfast.ops.queries import activity as _activity
from holdfast.ops.queries import audit_names as _audit_names
from holdfast.ops.queries import deliveries as _deliveries
from holdfast.ops.queries import filter_names as _filter_names
from holdfast.ops.queries import flow_keys as _flow_keys
from holdfast.ops.queries import messages as _messages
from holdfast.ops.queries import metrics as _metrics
from holdfast.ops.queries import pages as _pages
from holdfast.ops.queries import pending_count as _pending
from holdfast.ops.queries import request_trace as _trail
from holdfast.ops.queries import samples as _samples
from holdfast.ops.queries import search as _search
from holdfast.ops.queries import stats as _stats
from holdfast.ops.queries import tenants as _tenants
from holdfast.ops.queries import throughput as _trend
from holdfast.ops.queries import workflows as _workflows
from holdfast.ops.resources import breakers as _breakers
from holdfast.ops.resources import consumers as _consumers
from holdfast.ops.resources import flow as _flow
from holdfast.ops.resources import idempotency as _idempotency
from holdfast.ops.resources import job_groups as _job_groups
from holdfast.ops.resources import projectors as _projectors
from holdfast.ops.resources import queues as _queues
from holdfast.ops.resources import relays as _relays
from holdfast.ops.resources import schedules as _schedules
from holdfast.ops.resources import tokens as _tokens
from holdfast.ops.resources import webhooks as _webhooks
from holdfast.ops.resources import workflow_runs as _workflow_runs
from holdfast.ops.steps import AsyncService, ServiceMethod, SyncService


class _Catalogue:
    """The tasks of both services. Every change has an actor and is audited in its own transaction."""

    now = ServiceMethod(_deliveries.now)
    stats = ServiceMethod(_stats.stats)
    pending = ServiceMethod(_pending.pending)
    metrics = ServiceMethod(_metrics.metrics)
    trend = ServiceMethod(_trend.trend)
    group_trend = ServiceMethod(_trend.group_trend)
    retrying = ServiceMethod(_trend.retrying)
    tenants = ServiceMethod(_tenants.tenants)
    doctor = ServiceMethod(_doctor.doctor)

    deliveries = ServiceMethod(_deliveries.deliveries)
    delivery = ServiceMethod(_deliveries.delivery)
    delivery_page = ServiceMethod(_pages.delivery_page)
    export = ServiceMethod(_deliveries.export)
    job = ServiceMethod(_deliveries.job)
    activity = ServiceMethod(_activity.activity)
    dead_letter_counts = ServiceMethod(_deliveries.dead_letter_counts)
    failure_groups = ServiceMethod(_deliveries.failure_groups)
    check_filter = ServiceMethod(_filter_names.check_filter)
    check_type_exists = ServiceMethod(_filter_names.check_type_exists)
    search = ServiceMethod(_search.search)
    has_request = ServiceMethod(_search.has_request)

    create_plan = ServiceMethod(_plans.create_plan)
    plan_replay = ServiceMethod(_plans.plan_replay)
    plan_discard = ServiceMethod(_plans.plan_discard)
    plan_cancel = ServiceMethod(_plans.plan_cancel)
    replay = ServiceMethod(_plans.replay)
    discard = ServiceMethod(_plans.discard)
    cancel = ServiceMethod(_plans.cancel)

    plans = ServiceMethod(_plans.plans)
    plan = ServiceMethod(_plans.plan)
    plan_items = ServiceMethod(_plans.plan_items)
    start_plan = ServiceMethod(_plans.start_plan)
    pause_plan = ServiceMethod(_plans.pause_plan)
    resume_plan = ServiceMethod(_plans.resume_plan)
    abandon_plan = ServiceMethod(_plans.abandon_plan)
    delete_plan = ServiceMethod(_plans.delete_plan)
    advance_plan = ServiceMethod(_plans.advance_plan)
    advance_plans = ServiceMethod(_plans.advance_plans)
    run_plan = ServiceMethod(_plans.run_plan)
    follow_plans = ServiceMethod(_plans.follow_plans)
    export_plan = ServiceMethod(_plans.export_plan)
    load_plan = ServiceMethod(_plans.load_plan)

    messages = ServiceMethod(_messages.messages)
    message = ServiceMethod(_messages.message)
    message_page = ServiceMethod(_pages.message_page)
    samples = ServiceMethod(_samples.samples)
    trace_request = ServiceMethod(_trail.trace_request)
    publish = ServiceMethod(_messages.publish_event)
    enqueue = ServiceMethod(_messages.enqueue)

    queues = ServiceMethod(_queues.queues)
    pause_queue = ServiceMethod(_queues.pause_queue)
    resume_queue = ServiceMethod(_queues.resume_queue)

    consumers = ServiceMethod(_consumers.consumers)
    pause_consumer = ServiceMethod(_consumers.pause_consumer)
    resume_consumer = ServiceMethod(_consumers.resume_consumer)
    unblock_consumer = ServiceMethod(_consumers.unblock_consumer)
    retire_consumer = ServiceMethod(_consumers.retire_consumer)
    catch_up = ServiceMethod(_consumers.catch_up)

    keys = ServiceMethod(_flow_keys.keys)
    limit_consumer = ServiceMethod(_flow.limit_consumer)
    limit_queue = ServiceMethod(_flow.limit_queue)
    pause_key = ServiceMethod(_flow.pause_key)
    resume_key = ServiceMethod(_flow.resume_key)

    projectors = ServiceMethod(_projectors.projectors)

    relays = ServiceMethod(_relays.relays)

    workflows = ServiceMethod(_workflows.workflows)
    workflow_runs = ServiceMethod(_workflows.workflow_runs)
    workflow_run = ServiceMethod(_workflows.workflow_run)
    start_run = ServiceMethod(_workflow_runs.start_run)
    signal_run = ServiceMethod(_workflow_runs.signal_run, "check_signal")
    trigger_run = ServiceMethod(_workflow_runs.trigger_run)
    retry_run = ServiceMethod(_workflow_runs.retry_run)
    cancel_run = ServiceMethod(_workflow_runs.cancel_run)
    fork_run = ServiceMethod(_workflow_runs.fork_run)

    job_groups = ServiceMethod(_job_groups.job_groups)
    job_group = ServiceMethod(_job_groups.job_group)
    cancel_job_group = ServiceMethod(_job_groups.cancel_job_group)

    schedules = ServiceMethod(_schedules.schedules)
    schedule = ServiceMethod(_schedules.show_schedule)
    put_schedule = ServiceMethod(_schedules.put_schedule)
    pause_schedule = ServiceMethod(_schedules.pause_schedule)
    resume_schedule = ServiceMethod(_schedules.resume_schedule)
    remove_schedule = ServiceMethod(_schedules.remove_schedule)
    run_schedule = ServiceMethod(_schedules.run_schedule)

    webhooks = ServiceMethod(_webhooks.webhooks)
    add_webhook = ServiceMethod(_webhooks.add_webhook)
    disable_webhook = ServiceMethod(_webhooks.disable_webhook)
    enable_webhook = ServiceMethod(_webhooks.enable_webhook)
    rotate_webhook_secret = ServiceMethod(_webhooks.rotate_webhook_secret)
    test_webhook = ServiceMethod(_webhooks.try_webhook)

    breakers = ServiceMethod(_breakers.breakers)
    reset_breaker = ServiceMethod(_breakers.reset_breaker)
    trip_breaker = ServiceMethod(_breakers.trip_breaker)

    idempotency_keys = ServiceMethod(_idempotency.idempotency_keys)
    idempotency_key = ServiceMethod(_idempotency.idempotency_key)
    release_idempotency_key = ServiceMethod(_idempotency.release_idempotency_key)

    create_token = ServiceMethod(_tokens.create_token)
    tokens = ServiceMethod(_tokens.tokens)
    revoke_token = ServiceMethod(_tokens.revoke_token)
    recognise_token = ServiceMethod(_tokens.recognise_token)

    workers = ServiceMethod(_upkeep.worker_list)
    audit = ServiceMethod(_upkeep.audit)
    check_audit_filter = ServiceMethod(_audit_names.check_audit_filter)
    prunable = ServiceMethod(_upkeep.prunable_now)
    prune = ServiceMethod(_upkeep.prune)
    encryption_keys = ServiceMethod(_encryption.encryption_keys)
    rotate_encryption = ServiceMethod(_encryption.rotate_encryption)
    schema_status = ServiceMethod(_upkeep.schema_status)
    schema_sql = ServiceMethod(_upkeep.schema_sql)
    migrate = ServiceMethod(_upkeep.migrate)


class SyncOperations(_Catalogue, SyncService):
    """`hf.ops.sync`: the same names, blocking."""


class Operations(_Catalogue, AsyncService):
    """The tasks of operators on one store.

    plan = await hf.ops.plan_replay(Filter(group="9768cf8bff58e58b"), limit=100)
    report = await plan.execute(actor="ada", reason="fixed in 42", generation=42)
    """

    @property
    def sync(self) -> SyncOperations:
        return SyncOperations(self.store, self.prepare, self.check_signal)
