"""The scenario: a series of failures and recoveries."""

from collections.abc import Sequence, Set

from holdfast.interfaces.demo.runner import ScenarioRunner
from holdfast.interfaces.demo.snapshot import State
from holdfast.interfaces.demo.worker import LEASE
from holdfast.stores.queries.query import Filter

_RUSH = 40
_TIMEOUT = 30.0
_MANY = 10_000
_MANUAL_REPLAY_SECONDS = 25.0


def play(runner: ScenarioRunner) -> None:
    """Plays all parts once."""
    for part in (mail_server_dies, worker_is_killed, partner_dies, bad_deploy):
        part(runner)


def start_shop(runner: ScenarioRunner) -> None:
    """Waits for the workers and starts the customers."""
    _wait_for_workers(runner)
    runner.customers.start()
    runner.say(f"the shop is open; {_workers(runner.workers.pids)} are ready (press Ctrl-C to stop)")
    runner.wait(1.2)


def mail_server_dies(runner: ScenarioRunner) -> None:
    """An outside effect fails for a while: deliveries are retried, none is given up."""
    runner.services.mail.stop()
    runner.say("the mail server just died: receipts fail and are retried with increasing delays")
    runner.wait(2.4)
    failed = _ids(runner, "consumer = 'receipts' and status = 'pending' and error_type is not null")
    runner.services.mail.start()
    runner.say(f"the mail server is back; {len(failed)} receipts wait for their next attempt")
    if _done(runner, failed):
        runner.say("every one of those receipts has been sent")


def worker_is_killed(runner: ScenarioRunner) -> None:
    """A process is killed while it works: its lease expires and another worker takes over."""
    usual, runner.services.mail.latency = runner.services.mail.latency, 0.3
    runner.customers.rush(_RUSH)
    runner.until(lambda now: max(now.workers.values(), default=0) >= 10, at_most=3)
    busy = runner.snapshot().workers
    victim = max(runner.workers.pids, key=lambda pid: busy.get(pid, 0))
    runner.workers.kill(victim)
    orphans = _ids(runner, "status = 'in_flight' and locked_by like {placeholder}", f"%/{victim}/%")
    runner.services.mail.latency = usual
    runner.say(
        f"worker {victim} was killed with SIGKILL under load; its {_deliveries(len(orphans))} will be taken "
        f"over when its {LEASE.total_seconds():g}-second lease ends"
    )
    if _done(runner, orphans):
        runner.say(f"all {len(orphans)} were taken over and are done; {_workers(runner.workers.pids)} continue")


def partner_dies(runner: ScenarioRunner) -> None:
    """A partner's server is down: the circuit opens, deliveries are parked, and spend no attempt."""
    runner.services.partner.stop()
    runner.say("a partner's webhook receiver just died: after five failures the circuit opens, deliveries park")
    runner.until(lambda now: now.count(State.PARKED) > 0, _TIMEOUT)
    runner.wait(1.5)
    parked = _ids(runner, "consumer = 'webhooks' and status = 'pending' and error_type is not null")
    dead = runner.snapshot().count(State.DEAD)
    runner.services.partner.start()
    runner.say(f"the receiver is back; {_deliveries(len(parked))} are parked, {dead or 'none'} dead")
    if _done(runner, parked):
        runner.say("the circuit is closed again, and the partner received every one of those orders")


def bad_deploy(runner: ScenarioRunner) -> None:
    """A bug is deployed: dead letters of one group collect, and are replayed after the fix."""
    release = _roll_out(runner)
    runner.say(f"release {release} is out, with a bug in stock: deliveries that fail three times become dead letters")
    runner.until(lambda now: now.count(State.DEAD) > 0, _TIMEOUT)
    runner.wait(0.8)
    release = _roll_out(runner)
    if runner.console is not None:
        runner.say(f"release {release} fixes it; replay the dead letters at {runner.console}/groups, or wait")
        runner.until(lambda now: now.count(State.DEAD) == 0, at_most=_MANUAL_REPLAY_SECONDS)
    for group in runner.shop.hf.ops.sync.failure_groups():
        cause = f"{group.error_type} in {group.consumer}"
        runner.say(f"release {release} fixes it; {group.count} dead letters of one group ({cause}) are replayed")
    replayed = replay_dead_letters(runner, f"fixed in release {release}")
    if not replayed:
        runner.say("they are already replayed; the audit records who did it, when and why")
    elif _done(runner, replayed):
        runner.say(f"all {len(replayed)} are delivered; the audit records who replayed them, when and why")


def finish(runner: ScenarioRunner) -> None:
    """Stops the customers, restores all services and finishes the remaining work."""
    runner.customers.stop()
    runner.services.restore()
    _resume_all(runner)
    if runner.workers.release % 2:
        _roll_out(runner)
    runner.workers.retire()
    runner.until(lambda _: runner.workers.settled, _TIMEOUT)
    runner.until(lambda now: now.unfinished == 0, _TIMEOUT)
    if replay_dead_letters(runner, "left over when the shop closed"):
        runner.until(lambda now: now.unfinished == 0, _TIMEOUT)


def _resume_all(runner: ScenarioRunner) -> None:
    """Resumes what a user paused in the console, so that the remaining work can finish."""
    ops = runner.shop.hf.ops.sync
    stats = ops.stats()
    for queue in stats.paused_queues:
        ops.resume_queue(queue, actor="demo", reason="demo ends")
    for consumer in stats.paused_consumers:
        ops.resume_consumer(consumer, actor="demo", reason="demo ends")


def replay_dead_letters(runner: ScenarioRunner, reason: str) -> set[str]:
    """Replays every dead letter as an operator would; returns the ids."""
    plan = runner.shop.hf.ops.sync.plan_replay(Filter(dead=True), limit=_MANY)
    report = plan.sync.execute(actor="demo", reason=reason)
    return {str(id) for id in report.done}


def _roll_out(runner: ScenarioRunner) -> str:
    """Deploys the next release: the old workers stop once the new ones are ready."""
    runner.workers.deploy(runner.workers.release + 1)
    _wait_for_workers(runner)
    runner.workers.retire()
    runner.until(lambda _: runner.workers.settled, _TIMEOUT)
    return f"1.{runner.workers.release}"


def _wait_for_workers(runner: ScenarioRunner) -> None:
    """Waits until every process of the current release is registered in the store."""
    runner.until(lambda now: now.workers.keys() >= set(runner.workers.pids), _TIMEOUT)


def _ids(runner: ScenarioRunner, where: str, *values: object) -> set[str]:
    """Ids of the deliveries that match a condition."""
    rows = runner.shop.database.rows(f"select id from {{hf}}delivery where {where}", values)  # noqa: S608
    return {str(id) for (id,) in rows}


def _done(runner: ScenarioRunner, ids: Set[str]) -> bool:
    """Waits for a limited time until all of these deliveries are delivered; returns whether they are."""
    return runner.until(lambda _: not ids & _ids(runner, "status <> 'delivered'"), _TIMEOUT)


def _workers(pids: Sequence[int]) -> str:
    return f"workers {' and '.join(map(str, pids))}"


def _deliveries(count: int) -> str:
    return f"{count} delivery" if count == 1 else f"{count} deliveries"
