"""The story: what happens to the shop, chapter by chapter, and what holds all the same."""

from collections.abc import Sequence, Set

from holdfast.interfaces.demo.snapshot import State
from holdfast.interfaces.demo.stage import Stage
from holdfast.interfaces.demo.worker import LEASE
from holdfast.stores.query import Filter

_RUSH = 40
_PATIENCE = 30.0
_MANY = 10_000
_VISITOR_SECONDS = 25.0


def tell(stage: Stage) -> None:
    """The whole story, once."""
    for chapter in (mail_server_dies, worker_is_killed, partner_dies, bad_deploy):
        chapter(stage)


def open_doors(stage: Stage) -> None:
    """The first workers report for duty, the first customers come."""
    _report_for_duty(stage)
    stage.customers.start()
    stage.say(f"the shop is open; {_workers(stage.crew.pids)} wait for orders (Ctrl-C closes it)")
    stage.wait(1.2)


def mail_server_dies(stage: Stage) -> None:
    """An effect elsewhere fails for a while: retries climb, and nothing is given up."""
    stage.world.mail.die()
    stage.say("the mail server just died: receipts fail and are retried, each wait longer than the last")
    stage.wait(2.4)
    failed = _ids(stage, "consumer = 'receipts' and status = 'pending' and error_type is not null")
    stage.world.mail.revive()
    stage.say(f"the mail server is back; {len(failed)} receipts wait for their next attempt")
    if _done(stage, failed):
        stage.say("every one of those receipts has been sent")


def worker_is_killed(stage: Stage) -> None:
    """A process dies in the middle of its work: its lease runs out, and another takes over."""
    usual, stage.world.mail.latency = stage.world.mail.latency, 0.3
    stage.customers.rush(_RUSH)
    stage.until(lambda now: max(now.workers.values(), default=0) >= 10, at_most=3)
    busy = stage.look().workers
    victim = max(stage.crew.pids, key=lambda pid: busy.get(pid, 0))
    stage.crew.kill(victim)
    orphans = _ids(stage, "status = 'in_flight' and locked_by like {mark}", f"%/{victim}/%")
    stage.world.mail.latency = usual
    stage.say(
        f"worker {victim} was killed with SIGKILL in the midday rush; its {_deliveries(len(orphans))} will be taken "
        f"over when its {LEASE.total_seconds():g}-second lease ends"
    )
    if _done(stage, orphans):
        stage.say(f"all {len(orphans)} were taken over and are done; {_workers(stage.crew.pids)} carry on")


def partner_dies(stage: Stage) -> None:
    """Somebody else's server is down: the circuit opens, deliveries park, no attempt is wasted on it."""
    stage.world.partner.die()
    stage.say("a partner's webhook receiver just died: after five failures the circuit opens, deliveries park")
    stage.until(lambda now: now.count(State.PARKED) > 0, _PATIENCE)
    stage.wait(1.5)
    parked = _ids(stage, "consumer = 'webhooks' and status = 'pending' and error_type is not null")
    dead = stage.look().count(State.DEAD)
    stage.world.partner.revive()
    stage.say(f"the receiver is back; {_deliveries(len(parked))} are parked, {dead or 'none'} dead")
    if _done(stage, parked):
        stage.say("the circuit is closed again, and the partner has heard of every one of those orders")


def bad_deploy(stage: Stage) -> None:
    """A bug goes live: dead letters pile up on one shelf, and are replayed when it is mended."""
    release = _roll_out(stage)
    stage.say(f"release {release} is out, with a bug in stock: what fails three times becomes a dead letter")
    stage.until(lambda now: now.count(State.DEAD) > 0, _PATIENCE)
    stage.wait(0.8)
    release = _roll_out(stage)
    if stage.console is not None:
        stage.say(f"release {release} mends it; replay the dead letters at {stage.console}/groups, or wait and see")
        stage.until(lambda now: now.count(State.DEAD) == 0, at_most=_VISITOR_SECONDS)
    for group in stage.shop.hf.ops.sync.failure_groups():
        cause = f"{group.error_type} in {group.consumer}"
        stage.say(f"release {release} mends it; {group.count} dead letters of one kind ({cause}) are replayed")
    replayed = replay_dead_letters(stage, f"mended in release {release}")
    if not replayed:
        stage.say("they are replayed already; the audit says who did it, when and why")
    elif _done(stage, replayed):
        stage.say(f"all {len(replayed)} are delivered; the audit says who replayed them, when and why")


def close_doors(stage: Stage) -> None:
    """Nobody orders any more, everything is mended, and what is left is finished."""
    stage.customers.stop()
    stage.world.heal()
    _resume_all(stage)
    if stage.crew.release % 2:
        _roll_out(stage)
    stage.crew.retire()
    stage.until(lambda _: stage.crew.settled, _PATIENCE)
    stage.until(lambda now: now.unfinished == 0, _PATIENCE)
    if replay_dead_letters(stage, "left over when the shop closed"):
        stage.until(lambda now: now.unfinished == 0, _PATIENCE)


def _resume_all(stage: Stage) -> None:
    """A visitor may have paused something in the console; work that is left must be finished."""
    ops = stage.shop.hf.ops.sync
    stats = ops.stats()
    for queue in stats.paused_queues:
        ops.resume_queue(queue, actor="demo", reason="the shop closes")
    for consumer in stats.paused_consumers:
        ops.resume_consumer(consumer, actor="demo", reason="the shop closes")


def replay_dead_letters(stage: Stage, reason: str) -> set[str]:
    """Puts every dead letter back to work, as an operator would; says which."""
    plan = stage.shop.hf.ops.sync.plan_replay(Filter(dead=True), limit=_MANY)
    report = plan.sync.execute(actor="demo", reason=reason)
    return {str(id) for id in report.done}


def _roll_out(stage: Stage) -> str:
    """Deploys the next release: its crew reports for duty before the old one goes home."""
    stage.crew.deploy(stage.crew.release + 1)
    _report_for_duty(stage)
    stage.crew.retire()
    stage.until(lambda _: stage.crew.settled, _PATIENCE)
    return f"1.{stage.crew.release}"


def _report_for_duty(stage: Stage) -> None:
    """Waits until every process of the present release has announced itself in the store."""
    stage.until(lambda now: now.workers.keys() >= set(stage.crew.pids), _PATIENCE)


def _ids(stage: Stage, where: str, *values: object) -> set[str]:
    """The deliveries of which something is true."""
    rows = stage.shop.database.rows(f"select id from {{hf}}delivery where {where}", values)  # noqa: S608
    return {str(id) for (id,) in rows}


def _done(stage: Stage, wanted: Set[str]) -> bool:
    """Waits until all of these deliveries are delivered; says whether they are."""
    return stage.until(lambda _: not wanted & _ids(stage, "status <> 'delivered'"), _PATIENCE)


def _workers(pids: Sequence[int]) -> str:
    return f"workers {' and '.join(map(str, pids))}"


def _deliveries(count: int) -> str:
    return f"{count} delivery" if count == 1 else f"{count} deliveries"
