"""`hf.ops`: everything an operator can see and do, awaited here and blocking under `.sync`."""

# The names a caller knows stand in the class; the modules must not hide behind them.
from holdfast.ops import breakers as _breakers
from holdfast.ops import consumers as _consumers
from holdfast.ops import deliveries as _deliveries
from holdfast.ops import doctor as _doctor
from holdfast.ops import idempotency as _idempotency
from holdfast.ops import messages as _messages
from holdfast.ops import metrics as _metrics
from holdfast.ops import pages as _pages
from holdfast.ops import plans as _plans
from holdfast.ops import projectors as _projectors
from holdfast.ops import queues as _queues
from holdfast.ops import relays as _relays
from holdfast.ops import schedules as _schedules
from holdfast.ops import search as _search
from holdfast.ops import stats as _stats
from holdfast.ops import tokens as _tokens
from holdfast.ops import trail as _trail
from holdfast.ops import trend as _trend
from holdfast.ops import upkeep as _upkeep
from holdfast.ops import webhooks as _webhooks
from holdfast.ops.work import Awaiting, Blocking, Task


class _Catalogue:
    """What both sides offer. Every action names its actor and is audited in the transaction that does it."""

    now = Task(_deliveries.now)
    stats = Task(_stats.stats)
    metrics = Task(_metrics.metrics)
    trend = Task(_trend.trend)
    retrying = Task(_trend.retrying)
    doctor = Task(_doctor.doctor)

    deliveries = Task(_deliveries.deliveries)
    delivery = Task(_deliveries.delivery)
    delivery_page = Task(_pages.delivery_page)
    export = Task(_deliveries.export)
    job = Task(_deliveries.job)
    dead_letter_counts = Task(_deliveries.dead_letter_counts)
    failure_groups = Task(_deliveries.failure_groups)
    search = Task(_search.search)
    has_request = Task(_search.has_request)

    create_plan = Task(_plans.create_plan)
    plan_replay = Task(_plans.plan_replay)
    plan_discard = Task(_plans.plan_discard)
    plan_cancel = Task(_plans.plan_cancel)
    replay = Task(_plans.replay)
    discard = Task(_plans.discard)
    cancel = Task(_plans.cancel)

    plans = Task(_plans.plans)
    plan = Task(_plans.plan)
    plan_items = Task(_plans.plan_items)
    start_plan = Task(_plans.start_plan)
    pause_plan = Task(_plans.pause_plan)
    resume_plan = Task(_plans.resume_plan)
    abandon_plan = Task(_plans.abandon_plan)
    advance_plan = Task(_plans.advance_plan)
    advance_plans = Task(_plans.advance_plans)
    run_plan = Task(_plans.run_plan)
    follow_plans = Task(_plans.follow_plans)
    export_plan = Task(_plans.export_plan)
    load_plan = Task(_plans.load_plan)

    messages = Task(_messages.messages)
    message = Task(_messages.message)
    message_page = Task(_pages.message_page)
    trace_request = Task(_trail.trace_request)
    publish = Task(_messages.publish_event)
    enqueue = Task(_messages.enqueue)

    queues = Task(_queues.queues)
    pause_queue = Task(_queues.pause_queue)
    resume_queue = Task(_queues.resume_queue)

    consumers = Task(_consumers.consumers)
    pause_consumer = Task(_consumers.pause_consumer)
    resume_consumer = Task(_consumers.resume_consumer)
    unblock_consumer = Task(_consumers.unblock_consumer)
    retire_consumer = Task(_consumers.retire_consumer)
    catch_up = Task(_consumers.catch_up)

    projectors = Task(_projectors.projectors)

    relays = Task(_relays.relays)

    schedules = Task(_schedules.schedules)
    pause_schedule = Task(_schedules.pause_schedule)
    resume_schedule = Task(_schedules.resume_schedule)
    run_schedule = Task(_schedules.run_schedule)

    webhooks = Task(_webhooks.webhooks)
    add_webhook = Task(_webhooks.add_webhook)
    disable_webhook = Task(_webhooks.disable_webhook)
    enable_webhook = Task(_webhooks.enable_webhook)
    rotate_webhook_secret = Task(_webhooks.rotate_webhook_secret)
    test_webhook = Task(_webhooks.try_webhook)

    breakers = Task(_breakers.breakers)
    reset_breaker = Task(_breakers.reset_breaker)
    trip_breaker = Task(_breakers.trip_breaker)

    idempotency_keys = Task(_idempotency.idempotency_keys)
    idempotency_key = Task(_idempotency.idempotency_key)
    release_idempotency_key = Task(_idempotency.release_idempotency_key)

    create_token = Task(_tokens.create_token)
    tokens = Task(_tokens.tokens)
    revoke_token = Task(_tokens.revoke_token)
    recognise_token = Task(_tokens.recognise_token)

    workers = Task(_upkeep.worker_list)
    audit = Task(_upkeep.audit)
    prunable = Task(_upkeep.prunable_now)
    prune = Task(_upkeep.prune)
    schema_status = Task(_upkeep.schema_status)
    schema_sql = Task(_upkeep.schema_sql)
    migrate = Task(_upkeep.migrate)


class SyncOperations(_Catalogue, Blocking):
    """`hf.ops.sync`: the same names, blocking."""


class Operations(_Catalogue, Awaiting):
    """What operators see and do on one store.

    plan = await hf.ops.plan_replay(Filter(group="9768cf8bff58e58b"), limit=100)
    report = await plan.execute(actor="ada", reason="fixed in 42", generation=42)
    """

    @property
    def sync(self) -> SyncOperations:
        return SyncOperations(self.store, self.prepare)
