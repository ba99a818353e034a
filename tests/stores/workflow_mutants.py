"""Guards of the statements by which operators retry, fork, cancel, signal and replay runs."""

from functools import partial

from tests.stores.mutation import collides, kills, postgres, sqlite
from tests.stores.workflows import test_operators

_ENDED = partial(test_operators.test_a_replay_finds_the_steps_of_ended_runs, status="failed")
_COMPENSATED = partial(test_operators.test_a_replay_finds_the_steps_of_ended_runs, status="compensating")

OPERATORS = [
    *kills(
        test_operators.test_a_retry_runs_only_what_failed_and_what_follows_it_again,
        postgres("failed_steps", "d.status = 'failed'"),
        postgres("restart_run", "epoch = epoch + 1", "epoch = epoch"),
        sqlite("failed_steps", "d.status = 'failed'"),
        sqlite("restart_run", "epoch = epoch + 1", "epoch = epoch"),
    ),
    *collides(
        test_operators.test_a_retry_from_a_done_step_forgets_its_result_and_builds_the_join_again,
        postgres(
            "reset_steps",
            "t.name in (s.step, s.step || ':undo', s.step || '/deadline:step', 'compensation:undo')",
            "false",
        ),
        postgres("store_counters", "s.waiting, s.arrived\n", "s.waiting + 1, s.arrived\n"),
        postgres("restart_run", "case when deadline > now() then deadline end", "deadline"),
        sqlite(
            "reset_steps", "name in (:step, :step || ':undo', :step || '/deadline:step', 'compensation:undo')", "false"
        ),
        sqlite("store_counters", ":waiting, :arrived)", ":waiting + 1, :arrived)"),
        sqlite("restart_run", "case when deadline > {now} then deadline end", "deadline"),
    ),
    *kills(
        test_operators.test_a_retry_detaches_the_children_of_a_done_step_and_of_no_other,
        postgres("reset_steps", "strpos(r.parent_wait, s.step || '/') = 1"),
        postgres("reset_steps", "'@' || r.parent_wait", "r.parent_wait"),
        sqlite("reset_steps", "instr(parent_wait, :step || '/') = 1"),
        sqlite("reset_steps", "'@' || parent_wait", "parent_wait"),
    ),
    *kills(
        test_operators.test_a_fork_copies_only_results_of_done_steps_that_were_not_undone,
        postgres("finished_steps", "u.name = t.name || ':undo'", "false"),
        postgres("finished_steps", "t.run_id = :run_id::uuid"),
        postgres("link_fork", "id = :run_id::uuid"),
        postgres("copy_results", "s.result::jsonb", "null"),
        sqlite("finished_steps", "u.name = t.name || ':undo'", "false"),
        sqlite("finished_steps", "t.run_id = :run_id"),
        sqlite("link_fork", "id = :run_id"),
        sqlite("copy_results", ":result", "null"),
    ),
    *kills(
        test_operators.test_a_fork_cannot_begin_after_a_join_that_is_not_done,
        postgres("finished_steps", "t.done_at is not null"),
        sqlite("finished_steps", "t.done_at is not null"),
    ),
    *kills(
        test_operators.test_a_key_makes_one_fork,
        postgres("fork_link", "r.id = :run_id::uuid", "false"),
        sqlite("fork_link", "r.id = :run_id", "false"),
    ),
    *collides(
        test_operators.test_a_signal_and_a_trigger_that_are_applied_twice_count_once,
        postgres("store_signal", "on conflict (id) do nothing", ""),
        postgres("store_trigger", "on conflict (run_id, name, occurrence) do nothing", ""),
        postgres("raise_signals", "status in ('running', 'compensating')"),
        sqlite("store_trigger", "on conflict (run_id, name, occurrence) do nothing", ""),
        sqlite("raise_signals", "status in ('running', 'compensating')"),
    ),
    *kills(
        test_operators.test_a_cancellation_leaves_the_report_of_a_child,
        postgres("discard_steps", "d.consumer <> :commands::text"),
        sqlite("discard_steps", "consumer <> :commands"),
    ),
    *kills(
        _ENDED,
        postgres("run_ended", "r.id = d.message_id", "false"),
        postgres("run_ended", "strpos(d.consumer, r.name || '/') = 1"),
        sqlite("run_ended", "r.id = d.message_id", "false"),
        sqlite("run_ended", "instr(d.consumer, r.name || '/') = 1"),
    ),
    *kills(
        _COMPENSATED,
        postgres("run_ended", "r.status = 'compensating'", "false"),
        postgres("run_ended", "d.consumer not like '%:undo'"),
        sqlite("run_ended", "r.status = 'compensating'", "false"),
        sqlite("run_ended", "d.consumer not like '%:undo'"),
    ),
]
