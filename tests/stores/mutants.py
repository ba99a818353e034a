"""Guards of the stores' SQL, each with the scenario that must fail when the guard is gone.

The scenarios are the conformance tests themselves: they pass as they are on every store, and must fail on the mutant.
"""

from functools import partial

from tests.stores.admin import test_actions, test_psql, test_replay
from tests.stores.concurrency import test_interleaved
from tests.stores.deliveries import (
    test_batch,
    test_claim,
    test_debounce,
    test_progress,
    test_removal,
    test_result,
    test_settle,
    test_stale_owner,
    test_worker,
)
from tests.stores.event_log import test_projection
from tests.stores.flow_mutants import FLOW
from tests.stores.groups import test_fan_in
from tests.stores.messages import test_inbox, test_keys, test_prune, test_publish, test_registry, test_schedules
from tests.stores.mutation import collides, kills, postgres, sqlite
from tests.stores.queries import test_query
from tests.stores.workflow_mutants import OPERATORS
from tests.stores.workflows import test_children, test_runs

_UNCHECKED = "left join {hf}queue q on q.name = l.queue left join {hf}consumer c on c.name = l.consumer where true"
_RAISED = "fence = d.fence + 1", "fence = d.fence"
_RAISED_LITE = "fence = fence + 1", "fence = fence"

SETTLING = [
    *kills(
        test_stale_owner.test_after_the_same_worker_claimed_it_again,
        postgres("settle_delivered", "d.fence = s.fence"),
        postgres("settle", "d.fence = s.fence"),
        postgres("function complete", "fence = owner_fence"),
        postgres("function complete", "if not found", "if false"),
        postgres("taken", *_RAISED),
        sqlite("settle_delivered", "d.fence = json_extract(s.value, '$[1]')"),
        sqlite("settle", "fence = :fence"),
        sqlite("trigger complete_insert", "d.fence = new.fence"),
        sqlite("trigger complete_insert", "where not exists", "where false and not exists"),
        sqlite("taken", *_RAISED_LITE),
    ),
    *collides(
        test_stale_owner.test_a_second_settle_of_the_same_claim_changes_nothing,
        postgres("settle_delivered", "d.locked_by = :worker::text"),
        postgres("settle", "d.locked_by = :worker::text"),
        sqlite("settle_delivered", "d.locked_by = :worker"),
        sqlite("settle", "locked_by = :worker"),
    ),
    *kills(
        test_settle.test_a_run_that_ended_with_its_lease_names_no_generation,
        postgres("settle", "case when not u.expired then", "case when true then"),
        sqlite("settle", "case when not :expired then", "case when true then"),
    ),
    *kills(
        test_stale_owner.test_a_worker_cannot_settle_what_another_holds,
        postgres("function complete", "locked_by = owner"),
        sqlite("trigger complete_insert", "d.locked_by = new.worker"),
    ),
    *kills(
        partial(test_settle.test_settling_one_claim_leaves_the_others_as_they_are, keep_run=False),
        postgres("settle_delivered", "d.id = any (array[s.delivery_id])"),
        sqlite("settle_delivered", "d.id = json_extract(s.value, '$[0]')"),
    ),
    *kills(
        partial(test_settle.test_settling_one_claim_leaves_the_others_as_they_are, keep_run=True),
        postgres("settle", "d.id = any (array[s.delivery_id])"),
        sqlite("settle", "id = :delivery_id"),
    ),
    *collides(
        test_inbox.test_a_foreign_key_is_handled_once,
        postgres("function record_handled", "if not found", "if false"),
        sqlite("trigger record_handled_insert", "where exists", "where false and exists"),
    ),
]

REPLAYING = [
    *collides(
        test_replay.test_what_waits_or_runs_is_not_replayed,
        postgres("function replay", "d.status = 'failed'"),
        postgres("function replay", "d.status = 'delivered'"),
        sqlite("replay", "d.status = 'failed'"),
        sqlite("replay", "d.status = 'delivered'"),
    ),
    *kills(
        partial(test_replay.test_what_was_discarded_or_cancelled_is_skipped, rerun=False),
        postgres("function replay", "d.discarded_at is null"),
        sqlite("replay", "d.discarded_at is null"),
    ),
    *kills(
        test_replay.test_done_work_is_skipped_unless_a_rerun_is_asked_for,
        postgres("function replay", "(rerun and", "(true and"),
        sqlite("replay", "(:rerun and", "(true and"),
    ),
    *kills(
        test_replay.test_only_the_chosen_ones_are_replayed,
        postgres("function replay", "d.id = any (ids)"),
        postgres("function replay", "c.unique_key is null or", ""),
        sqlite("replay", "d.id in (select value from json_each(:ids))"),
        sqlite("replay", "c.unique_key is null or", ""),
    ),
    *kills(
        test_replay.test_the_unique_key_of_another_consumer_does_not_stand_in_the_way,
        postgres("function replay", "o.consumer = d.consumer"),
        sqlite("replay", "o.consumer = d.consumer"),
    ),
    *kills(
        test_psql.test_outbox_replay_replays_one_event_and_not_its_neighbour,
        postgres("function outbox_replay", "d.message_id = event_id"),
    ),
    *collides(
        test_replay.test_a_job_whose_unique_key_is_taken_again_is_skipped,
        postgres("function replay", "o.status in ('pending', 'in_flight')"),
        postgres("function replay", "o.unique_key = d.unique_key", "false"),
        sqlite("replay", "o.status in ('pending', 'in_flight')"),
        sqlite("replay", "o.unique_key = d.unique_key", "false"),
    ),
    *collides(
        test_replay.test_of_several_dead_jobs_with_one_unique_key_one_is_replayed,
        postgres("function replay", "ranked.possible"),
        postgres("function replay", "partition by c.consumer, c.unique_key", "partition by c.unique_key"),
        sqlite("replay", "c.nth = 1"),
        sqlite("replay", "partition by d.consumer, d.unique_key", "partition by d.unique_key"),
    ),
    *kills(
        test_interleaved.test_a_replay_that_waited_for_another_looks_again,
        postgres("function replay", "for update of d", ""),
    ),
    *kills(
        test_stale_owner.test_after_a_replay,
        postgres("function replay", *_RAISED),
        sqlite("replay", *_RAISED_LITE),
    ),
    *kills(
        test_replay.test_the_newest_twenty_cycles_stay_and_each_one_is_in_the_audit,
        postgres("function replay", "limit 20", ""),
        sqlite("replay", "limit 20", ""),
    ),
    *kills(
        test_replay.test_by_default_it_is_the_highest_one_alive_for_the_consumer,
        postgres("function live_generation", "w.alive_until > now()"),
        postgres("function live_generation", "consumer_name = any (w.consumers)"),
        sqlite("replay", "w.alive_until > {now}"),
        sqlite("replay", "consumer in (select value from json_each(w.consumers))"),
    ),
    *kills(
        test_replay.test_by_default_a_worker_of_another_queue_does_not_count,
        postgres("function live_generation", "(w.queues = '{}' or queue_name is null or queue_name = any (w.queues))"),
        sqlite("replay", "(w.queues = '[]' or queue in (select value from json_each(w.queues)))"),
        sqlite("live_generation", "(w.queues = '[]' or :queue in (select value from json_each(w.queues)))"),
    ),
]

OPERATING = [
    *kills(
        test_query.test_neighbours_of_the_same_millisecond_are_distinguished,
        postgres("message_deliveries", "d.message_id = :message_id::uuid"),
        postgres("where_message", "d.message_id = :message_id::uuid"),
        sqlite("message_deliveries", "d.message_id = :message_id"),
        sqlite("where_message", "d.message_id = :message_id"),
    ),
    *kills(
        test_actions.test_only_dead_letters_are_discarded,
        postgres("discard", "d.status = 'failed'"),
        sqlite("discard", "status = 'failed'"),
    ),
    *kills(
        test_actions.test_discarding_twice_discards_once,
        postgres("discard", "d.discarded_at is null"),
        sqlite("discard", "discarded_at is null"),
    ),
    *kills(
        test_stale_owner.test_after_a_discard,
        postgres("discard", *_RAISED),
        sqlite("discard", *_RAISED_LITE),
    ),
    *kills(
        test_actions.test_what_has_ended_is_not_cancelled,
        postgres("cancel", "d.status in ('pending', 'in_flight')"),
        sqlite("cancel", "status in ('pending', 'in_flight')"),
    ),
    *kills(
        test_stale_owner.test_after_a_cancellation,
        postgres("cancel", *_RAISED),
        sqlite("cancel", *_RAISED_LITE),
    ),
    *kills(
        test_actions.test_the_worker_of_a_cancelled_run_reads_it_with_its_lease_until_it_has_received_it,
        postgres("forget_cancellations", "c.fence = r.fence"),
        sqlite("forget_cancellations", "fence = :fence"),
    ),
]

CLAIMING = [
    *kills(
        test_claim.test_a_delivery_is_claimed_once,
        postgres("claim", "d.status = 'pending'"),
        sqlite("claim", "d.status = 'pending'"),
    ),
    *kills(
        test_claim.test_only_what_is_due_is_claimed,
        postgres("claim", "d.run_at <= now()"),
        sqlite("claim", "d.run_at <= {now}"),
    ),
    *kills(
        test_claim.test_only_the_given_lanes_are_claimed,
        postgres("claim", "d.queue = l.queue"),
        postgres("claim", "d.consumer = l.consumer"),
        postgres("claim", "d.generation = l.generation"),
        postgres("claim", "d.priority = l.priority"),
        sqlite("claim", "d.queue = :queue"),
        sqlite("claim", "d.consumer = :consumer"),
        sqlite("claim", "d.generation = :generation"),
        sqlite("claim", "d.priority = :priority"),
    ),
    *kills(
        test_claim.test_suspects_are_left_out_unless_asked_for,
        postgres("claim", "{suspicion}"),
        sqlite("claim", "{suspicion}"),
    ),
    *kills(
        partial(test_claim.test_a_large_payload_does_not_come_with_the_claim, text=test_claim.LARGE["compressible"]),
        postgres("claimed", "octet_length(m.text) <= 65536"),
        sqlite("with_message", "length(m.payload) <= 65536"),
    ),
    *kills(
        test_claim.test_a_takeover_reads_no_payload,
        postgres("rescue", "null::text as text", "m.payload::text as text"),
        sqlite("rescue", "null as text", "m.payload as text"),
    ),
    *kills(
        test_claim.test_a_claim_counts_the_attempt_raises_the_fence_and_sets_the_lease,
        postgres("taken", "attempts = d.attempts + 1", "attempts = d.attempts"),
        sqlite("taken", "attempts = attempts + 1", "attempts = attempts"),
    ),
    *kills(
        test_claim.test_lanes_are_listed_alike_from_the_floors_of_the_known_ones,
        postgres("lanes_above", "{runnable}", _UNCHECKED),
        postgres("lane_above", "and p.to_queue is null", "and false"),
        postgres("lane_above", "where k.queue <> ''", ""),
        postgres("lane_above", "where u.run_at is not null", ""),
        postgres("lane_above", "and d.queue = k.queue", ""),
        postgres("lane_above", "and d.priority = k.priority", ""),
        sqlite("lanes_above", "{runnable}", _UNCHECKED),
    ),
    *kills(
        test_claim.test_every_unknown_lane_is_found_between_known_ones,
        *(
            postgres("lane_above", f"and {between}\n", "and false\n")
            for between in (
                "p.to_queue = p.queue and p.to_consumer <> p.consumer",
                "(p.to_queue, p.to_consumer) = (p.queue, p.consumer) and p.to_generation <> p.generation",
                "(p.to_queue, p.to_consumer, p.to_generation) = (p.queue, p.consumer, p.generation)",
                "(p.to_queue, p.to_consumer) <> (p.queue, p.consumer)",
                "(p.to_queue, p.to_consumer, p.to_generation) <> (p.queue, p.consumer, p.generation)",
            )
        ),
    ),
    *kills(
        test_claim.test_a_lane_is_read_from_its_floor_and_the_next_floor_is_its_oldest_delivery,
        postgres("lane_above", "d.run_at >= k.floor_at"),
        postgres("lane_above", "least(h.run_at, now())", "h.run_at"),
        postgres("lane_above", "least(u.run_at, now())", "u.run_at"),
        postgres("lane_above", "where h.is_live", ""),
    ),
    *kills(
        test_claim.test_an_idle_worker_claims_in_one_question_what_it_would_claim_in_two,
        postgres("discover_and_claim", "d.run_at <= now()"),
        postgres("discover_and_claim", "{suspicion}"),
        postgres("discover_and_claim", "d.queue = l.queue"),
        postgres("discover_and_claim", "d.generation = l.generation"),
        postgres("discover_and_claim", "{runnable}", _UNCHECKED),
        postgres(
            "discover_and_claim", "order by l.priority, l.queue, l.consumer, l.generation", "order by l.priority desc"
        ),
        sqlite("discover_and_claim", "d.run_at <= {now}"),
        sqlite("discover_and_claim", "{suspicion}"),
        sqlite("discover_and_claim", "d.queue = l.queue"),
        sqlite("discover_and_claim", "d.generation = l.generation"),
        sqlite("discover_and_claim", "{runnable}", _UNCHECKED),
        sqlite(
            "discover_and_claim",
            "order by l.priority, l.queue, l.consumer, l.generation, t.run_at, t.id",
            "order by l.priority desc",
        ),
    ),
    *kills(
        test_interleaved.test_a_claim_passes_over_what_another_is_claiming,
        postgres("claim", "for update skip locked", ""),
        postgres("claim", "skip locked", ""),
    ),
    *kills(
        test_worker.test_the_next_expiry_is_that_of_the_first_other_worker_that_lives,
        postgres("next_expiry", "w.alive_until >= now() and w.id", "w.id"),
        postgres("next_expiry", " and w.id <> :worker::text", ""),
        sqlite("next_expiry", "w.alive_until >= {now} and w.id", "w.id"),
        sqlite("next_expiry", " and w.id <> :worker", ""),
    ),
    *kills(
        test_worker.test_the_next_expiry_is_that_of_a_delivery_whose_worker_is_dead_or_gone,
        postgres("next_expiry", " and w.alive_until >= now()))", "))"),
        postgres("next_expiry", "w.id = d.locked_by"),
        sqlite("next_expiry", " and w.alive_until >= {now}))", "))"),
        sqlite("next_expiry", "w.id = d.locked_by", "1"),
    ),
    *kills(
        test_worker.test_what_a_living_worker_holds_does_not_expire_with_its_claim,
        postgres("next_expiry", "w.id = d.locked_by", "false"),
        sqlite("next_expiry", "w.id = d.locked_by", "0"),
    ),
    *kills(
        test_worker.test_nothing_is_taken_over_while_the_delivery_lease_lasts,
        postgres("rescue", "d.lease_until < now()"),
        sqlite("rescue", "d.lease_until < {now}"),
    ),
    *kills(
        test_worker.test_nothing_is_taken_over_while_its_worker_lives,
        postgres("rescue", "coalesce(w.alive_until < now(), true)"),
        sqlite("rescue", "coalesce(w.alive_until < {now}, 1)"),
    ),
    *kills(
        test_worker.test_a_worker_that_stopped_or_was_never_announced_protects_nothing_past_the_lease,
        postgres("rescue", "coalesce(w.alive_until < now(), true)", "w.alive_until < now()"),
        sqlite("rescue", "coalesce(w.alive_until < {now}, 1)", "w.alive_until < {now}"),
    ),
    *kills(
        test_interleaved.test_taking_over_passes_over_what_another_is_taking,
        postgres("rescue", "for update of d skip locked", ""),
    ),
    *kills(
        test_stale_owner.test_after_its_lease_ran_out_and_was_taken_over,
        postgres("rescue", *_RAISED),
        sqlite("rescue", *_RAISED_LITE),
    ),
    *kills(
        test_worker.test_a_lease_that_expired_or_is_gone_cannot_be_renewed,
        postgres("renew_worker", "id = :worker::text"),
        sqlite("renew_worker", "id = :worker"),
        postgres("renew_worker", "alive_until >= now()"),
        sqlite("renew_worker", "alive_until >= {now}"),
    ),
]

LANES = [
    *kills(
        test_claim.test_a_paused_queue_is_left_out_until_it_is_resumed,
        postgres("runnable", "q.paused_at is null"),
        sqlite("runnable", "q.paused_at is null"),
    ),
    *kills(
        test_claim.test_a_paused_consumer_is_left_out_until_it_is_resumed,
        postgres("runnable", "c.paused_at is null"),
        sqlite("runnable", "c.paused_at is null"),
    ),
    *kills(
        test_claim.test_a_blocked_consumer_is_left_out_until_its_time_or_its_release,
        postgres("runnable", "c.blocked_until <= now()"),
        sqlite("runnable", "c.blocked_until <= {now}"),
    ),
    *kills(
        test_claim.test_a_consumer_whose_block_is_over_is_tried_with_one_delivery_by_one_worker,
        postgres("lock_trial", "c.blocked_until <= now()"),
        postgres("discover_and_claim", "c.blocked_until is null"),
        sqlite("lock_trial", "c.blocked_until <= {now}"),
        sqlite("discover_and_claim", "c.blocked_until is null"),
    ),
    *kills(
        test_claim.test_lanes_hold_only_the_consumers_and_queues_asked_for,
        postgres("runnable", "l.consumer = any (:consumers::text[])"),
        postgres("runnable", "l.queue = any (:queues::text[])"),
        sqlite("runnable", "l.consumer in (select value from json_each(:consumers))"),
        sqlite("runnable", "l.queue in (select value from json_each(:queues))"),
    ),
    *kills(
        test_claim.test_a_newer_generation_is_never_claimed,
        postgres("runnable", "l.generation < :generation::bigint"),
        sqlite("runnable", "l.generation < :generation"),
    ),
    *kills(
        test_claim.test_an_older_generation_is_left_to_its_living_workers,
        postgres("runnable", "and not exists", "or not exists"),
        sqlite("runnable", "and not exists", "or not exists"),
    ),
    *kills(
        test_claim.test_an_older_generation_is_taken_when_none_of_its_workers_lives,
        postgres("runnable", "w.alive_until > now()"),
        sqlite("runnable", "w.alive_until > {now}"),
    ),
    *kills(
        test_claim.test_an_older_generation_is_taken_when_its_workers_do_not_serve_the_queue,
        postgres("runnable", "(w.queues = '{}' or l.queue = any (w.queues))"),
        sqlite("runnable", "(w.queues = '[]' or l.queue in (select value from json_each(w.queues)))"),
    ),
    *kills(
        test_claim.test_an_older_generation_is_left_to_a_living_worker_of_every_queue,
        postgres("runnable", "w.queues = '{}' or ", ""),
        sqlite("runnable", "w.queues = '[]' or ", ""),
    ),
    *kills(
        test_claim.test_an_older_generation_is_taken_when_its_workers_do_not_serve_the_consumer,
        postgres("runnable", "w.generation = l.generation"),
        postgres("runnable", "l.consumer = any (w.consumers)"),
        sqlite("runnable", "w.generation = l.generation"),
        sqlite("runnable", "l.consumer in (select value from json_each(w.consumers))"),
    ),
]

PUBLISHING = [
    *collides(
        test_publish.test_one_message_from_a_stale_fanout_is_not_stored_by_its_one_statement,
        postgres("publish_one", "n.epoch <= :sub_epoch::bigint"),
        sqlite("publish_one", "(select coalesce(max(s.epoch), 0) from {hf}subscription s) <= :sub_epoch"),
        sqlite("publish_one", "exists (select 1 from {hf}message m where m.id = :message_id)"),
    ),
    *collides(
        test_publish.test_alike_messages_from_a_stale_fanout_are_not_stored_by_their_one_statement,
        postgres("publish_alike", "n.epoch <= :known::bigint"),
        sqlite("publish_alike", "(select coalesce(max(s.epoch), 0) from {hf}subscription s) <= :known"),
        sqlite("publish_alike", ":known >= (select coalesce(max(s.epoch), 0) from {hf}subscription s)"),
    ),
    *collides(
        test_keys.test_a_key_published_twice_returns_the_first_message,
        postgres("publish_keyed", "on conflict do nothing", ""),
        postgres("publish_keyed", "d.message_id in (select s.id from stored s)"),
        sqlite("publish_keyed", "on conflict do nothing", ""),
        sqlite("publish_keyed", "exists (select 1 from {hf}message m where m.id = :message_id)"),
    ),
    *collides(
        test_keys.test_a_jobs_key_is_stored_once_across_sources,
        postgres(
            "publish_keyed", "on conflict do nothing", "on conflict (source, key) where key is not null do nothing"
        ),
        sqlite("publish_keyed", "on conflict do nothing", "on conflict (source, key) where key is not null do nothing"),
    ),
    *collides(
        test_keys.test_a_unique_job_exists_once_while_it_is_unfinished,
        postgres("publish_unique", "do nothing", "do update set status = 'pending'"),
        sqlite("publish_unique", "do nothing", "do update set status = 'pending'"),
    ),
    *collides(
        test_registry.test_a_new_declaration_brings_no_second_delivery,
        postgres("insert_deliveries", "on conflict (id) do nothing", ""),
        sqlite("insert_deliveries", "on conflict (id) do nothing", ""),
    ),
    *kills(
        test_interleaved.test_a_subscription_that_joins_during_a_catch_up_misses_nothing,
        postgres("catch_up_advance", "epoch <= :epoch::bigint"),
    ),
    *kills(
        test_registry.test_a_subscription_that_is_ahead_does_not_pull_others_along,
        postgres("catch_up_advance", "mark_tx = :mark_tx::text::xid8 and mark_position = :mark_position::bigint"),
        sqlite("catch_up_advance", "mark_position = :mark_position"),
    ),
    *kills(
        test_registry.test_a_retired_subscription_keeps_its_mark_while_others_continue,
        postgres("catch_up_advance", "retired_at is null"),
        sqlite("catch_up_advance", "retired_at is null"),
    ),
    *kills(
        test_registry.test_a_retired_subscription_is_not_caught_up,
        postgres("catch_up_scan", "s.retired_at is null"),
        sqlite("catch_up_scan", "s.retired_at is null"),
    ),
    *kills(
        test_registry.test_a_retired_subscription_never_has_more_to_catch_up,
        postgres("catch_up_marks", "s.retired_at is null"),
        sqlite("catch_up_marks", "s.retired_at is null"),
    ),
    *kills(
        test_interleaved.test_a_message_of_a_transaction_still_open_is_not_passed_over,
        postgres("catch_up_marks", "pg_snapshot_xmin(pg_current_snapshot())::text", "'9999999'"),
    ),
    *kills(
        test_interleaved.test_from_now_still_gets_what_was_in_flight_at_that_moment,
        postgres("catch_up_scan", "not pg_visible_in_snapshot(l.tx, s.activated)"),
    ),
]

SCHEDULING = [
    *kills(
        test_schedules.test_a_scheduler_that_wakes_late_does_not_move_it_back,
        postgres("advance_schedules", "s.last_at = g.last_at"),
        sqlite("advance_schedules", "last_at = :last_at"),
    ),
    *kills(
        test_schedules.test_a_scheduler_that_read_an_older_version_fires_nothing,
        postgres("advance_schedules", "s.revision = g.revision"),
        sqlite("advance_schedules", "revision = :revision"),
        postgres("advance_schedules", "s.paused_at is null"),
        sqlite("advance_schedules", "paused_at is null"),
    ),
    *kills(
        test_schedules.test_a_single_time_is_removed_with_its_firing_and_only_then,
        postgres("end_schedules", "s.revision = g.revision"),
        sqlite("end_schedules", "revision = :revision"),
    ),
    *kills(
        test_schedules.test_due_are_those_of_the_given_jobs_whose_time_has_come,
        postgres("due_schedules", "s.paused_at is null"),
        sqlite("due_schedules", "paused_at is null"),
        postgres("due_schedules", "s.next_at <= now()"),
        sqlite("due_schedules", "next_at <= {now}"),
        postgres("due_schedules", "s.job = wanted"),
        sqlite("due_schedules", "job = wanted.value"),
    ),
    *kills(
        test_schedules.test_a_declared_name_and_a_run_time_name_do_not_replace_each_other,
        postgres("save_schedule", "s.declared"),
        sqlite("save_schedule", "where declared", "where true"),
        postgres("put_schedule", "not s.declared"),
        sqlite("put_schedule", "not declared"),
        postgres("remove_schedule", "w.alive_until > now()"),
        sqlite("remove_schedule", "w.alive_until > {now}"),
    ),
    *kills(
        test_schedules.test_resuming_evaluates_a_schedule_at_once_and_keeps_a_single_time,
        postgres("resume_schedule", "case when expression = 'at' then next_at else now() end", "now()"),
        sqlite("resume_schedule", "case when expression = 'at' then next_at else {now} end", "{now}"),
        postgres("postpone_schedules", "expression <> 'at'"),
        sqlite("postpone_schedules", "expression <> 'at'"),
    ),
]

PRUNING = [
    *kills(
        test_prune.test_only_delivered_rows_go_and_their_runs_with_them,
        postgres("done", "d.status = 'delivered'"),
        sqlite("done", "d.status = 'delivered'"),
    ),
    *kills(
        test_prune.test_what_is_not_old_enough_stays,
        postgres("done", "d.completed_at < now() - :older_than::interval"),
        postgres("set_aside", "d.discarded_at < now() - :older_than::interval"),
        sqlite("done", "d.completed_at < {now} - :older_than"),
        sqlite("set_aside", "d.discarded_at < {now} - :older_than"),
    ),
    *kills(
        test_prune.test_a_consumer_keeps_its_rows_for_as_long_as_it_declares,
        postgres("done_by_keep", "d.status = 'delivered'"),
        postgres("done_by_keep", "make_interval(secs => c.keep)", "null::interval"),
        sqlite("done_by_keep", "d.status = 'delivered'"),
        sqlite("done_by_keep", "c.name = d.consumer"),
        sqlite("done_by_keep", "c.keep * 1000", "null"),
    ),
    *kills(
        test_prune.test_a_consumer_does_not_get_again_what_was_pruned,
        postgres("catch_up_scan", "c.pruned_to is null or l.id > c.pruned_to"),
        sqlite("catch_up_scan", "c.pruned_to is null or l.id > c.pruned_to"),
    ),
    *kills(
        test_prune.test_messages_stay_while_a_subscription_has_not_seen_them,
        postgres("prune_messages", "(s.mark_tx, s.mark_position) < (m.tx, m.position)", "false"),
        sqlite("prune_messages", "s.mark_position < m.position", "false"),
    ),
    *kills(
        test_prune.test_messages_go_only_when_no_delivery_needs_them,
        postgres("prune_messages", "d.message_id = m.id", "false"),
        sqlite("prune_messages", "d.message_id = m.id", "false"),
    ),
]

PROJECTING = [
    *kills(
        test_projection.test_no_worker_claims_for_a_projector_that_is_held,
        postgres("claim", "{unheld}"),
        postgres("runnable", "{unheld}"),
        sqlite("claim", ":consumer not in (select p.name from {hf}projector p where p.held_until > {now})"),
        sqlite("runnable", "{unheld}"),
    ),
    *kills(
        test_projection.test_a_hold_expires_and_is_not_prolonged_after_that,
        postgres("prolong_hold", "p.held_until > clock_timestamp()"),
        postgres("hold_stands", "p.held_until > clock_timestamp()"),
        postgres("unheld", "p.held_until > now()", "p.held_until is not null"),
        sqlite("prolong_hold", "held_until > {now}"),
        sqlite("hold_stands", "p.held_until > {now}"),
        sqlite("unheld", "p.held_until > {now}", "p.held_until is not null"),
    ),
    *kills(
        test_projection.test_a_rebuild_takes_over_when_no_live_worker_serves_the_projector,
        postgres("running_of", "d.status = 'in_flight'", "false"),
        postgres("running_of", "coalesce(w.alive_until >= clock_timestamp(), false)", "false"),
        sqlite("running_of", "d.status = 'in_flight'", "false"),
        sqlite("running_of", "coalesce(w.alive_until >= {now}, 0)", "false"),
    ),
    *kills(
        test_interleaved.test_a_rebuild_does_not_fence_a_run_that_is_taken_over_while_it_waits,
        postgres("fence_expired_runs", "d.fence = c.fence"),
    ),
    *kills(
        test_projection.test_a_second_rebuild_is_refused_while_the_first_lives,
        postgres("hold_projector", "r.fence = :fence::bigint"),
        sqlite("hold_projector", "r.fence = :fence"),
    ),
    *kills(
        test_projection.test_one_who_was_replaced_cannot_commit_what_it_applied,
        postgres("function rebuild_checkpoint", "fence = owner_fence"),
        postgres("function rebuild_checkpoint", "if not found", "if false"),
        sqlite("trigger rebuild_checkpoint_insert", "p.fence = new.fence"),
        sqlite("trigger rebuild_checkpoint_insert", "where not exists", "where false and not exists"),
    ),
    *kills(
        test_projection.test_a_step_of_a_rebuild_is_made_once,
        postgres("function rebuild_checkpoint", "cursor = before"),
        sqlite("trigger rebuild_checkpoint_insert", "p.cursor = new.before"),
    ),
    *kills(
        test_projection.test_the_end_makes_done_what_was_applied_and_nothing_else,
        postgres("rebuilt", "pg_visible_in_snapshot(m.tx, :done::text::pg_snapshot)"),
        postgres("mark_rebuilt", *_RAISED),
        sqlite("rebuilt", "m.position <= :reached"),
        sqlite("mark_rebuilt", *_RAISED_LITE),
    ),
    *kills(
        test_projection.test_a_discarded_letter_is_left_as_it_is,
        postgres("discarded_among", "d.discarded_at is not null"),
        postgres("dead_before_rebuild", "d.discarded_at is null"),
        sqlite("discarded_among", "d.discarded_at is not null"),
        sqlite("dead_before_rebuild", "d.discarded_at is null"),
    ),
    *kills(
        test_projection.test_a_rebuild_cannot_end_without_its_hold_or_its_fence,
        postgres("end_rebuild", "p.held_until > clock_timestamp() + interval '1 second'"),
        postgres("end_rebuild", "r.fence = :fence::bigint"),
        sqlite("end_rebuild", "held_until is not null"),
        sqlite("end_rebuild", "r.fence = :fence"),
    ),
    *kills(
        test_projection.test_a_rebuild_that_stops_lets_go_unless_it_is_in_place,
        postgres("stop_rebuild", "p.online"),
        sqlite("stop_rebuild", "online"),
    ),
    *kills(
        test_projection.test_a_new_subscription_is_given_what_it_has_no_delivery_of,
        postgres("unserved", "(c.pruned_to is null or m.id > c.pruned_to)"),
        sqlite("unserved", "(c.pruned_to is null or m.id > c.pruned_to)"),
    ),
    *kills(
        test_interleaved.test_a_rebuild_waits_for_a_claim_that_began_before_its_hold,
        postgres("lock_unfinished", "order by d.id for update of d", ""),
    ),
]

_BATCH_LANE = (
    "d.queue = :queue{text}",
    "d.consumer = :consumer{text}",
    "d.generation = :generation{bigint}",
    "d.priority = :priority{smallint}",
)

BATCHES = [
    *kills(
        test_batch.test_an_incomplete_batch_is_not_claimed_before_its_time,
        postgres("claim_batch", "min(g.run_at) <= now() - :within::interval"),
        sqlite("claim_batch", "min(g.run_at) <= {now} - :within"),
    ),
    *kills(
        test_batch.test_the_oldest_decides_and_takes_the_younger_ones_along,
        postgres("claim_batch", "min(g.run_at)", "max(g.run_at)"),
        sqlite("claim_batch", "min(g.run_at)", "max(g.run_at)"),
    ),
    *kills(
        test_batch.test_a_complete_batch_is_claimed_and_not_more,
        postgres("claim_batch", "count(*) >= {limit} or", ""),
        sqlite("claim_batch", "count(*) >= :limit or", ""),
    ),
    *kills(
        test_batch.test_what_is_not_due_completes_no_batch,
        postgres("claim_batch", "d.run_at <= now()"),
        sqlite("claim_batch", "d.run_at <= {now}"),
    ),
    *kills(
        test_batch.test_only_the_given_lane_is_claimed,
        *(postgres("claim_batch", part.replace("{", "::").replace("}", "")) for part in _BATCH_LANE),
        *(sqlite("claim_batch", part.partition("{")[0]) for part in _BATCH_LANE),
    ),
    *kills(
        test_batch.test_suspects_are_in_no_batch,
        postgres("claim_batch", "not d.suspect"),
        sqlite("claim_batch", "not d.suspect"),
    ),
    *kills(
        test_batch.test_a_delivery_is_in_one_batch,
        postgres("claim_batch", "d.status = 'pending'"),
        sqlite("claim_batch", "d.status = 'pending'"),
    ),
    *kills(
        partial(
            test_batch.test_an_item_whose_next_run_may_be_its_last_is_isolated_after_one_crash,
            budget=2,
            attempts=0,
            expiries=1,
        ),
        postgres("claim_batch", "greatest(d.expiries, 1)", "d.expiries"),
        sqlite("claim_batch", "max(expiries, 1)", "expiries"),
    ),
    *kills(
        test_batch.test_the_budget_of_the_delivery_or_its_message_comes_first,
        postgres("claim_batch", "d.max_attempts, ", "null, "),
        sqlite("claim_batch", "max_attempts, ", "null, "),
    ),
    *kills(
        test_batch.test_a_batch_of_one_runs_alone_already,
        postgres("claim_batch", "(select count(*) from c) > 1"),
        sqlite("claim_batch", "(select count(*) from c) > 1"),
    ),
    *kills(
        partial(test_batch.test_one_lost_item_refuses_the_whole_batch, lost=1),
        postgres("function complete", "if not found", "if owner_fence < 0"),
        sqlite("trigger complete_insert", "where not exists", "where 1 = 2 and not exists"),
    ),
    *kills(
        test_batch.test_a_check_counts_what_is_due_up_to_a_limit_and_its_age,
        postgres("batch_lanes", "d.run_at <= now()"),
        postgres("batch_lanes", "limit {limit}", ""),
        sqlite("batch_lanes", "d.run_at <= {now}"),
        sqlite("batch_lanes", "limit :limit", ""),
    ),
    *kills(
        partial(test_batch.test_a_check_leaves_out_paused_and_blocked_consumers, how="blocked and over"),
        postgres("batch_lanes", "c.blocked_until is null"),
        sqlite("batch_lanes", "c.blocked_until is null"),
    ),
]

_OWN = "d.fence = :fence::bigint"
_OWNER = "d.locked_by = :worker::text"

WORKFLOWS = [
    *kills(
        test_runs.test_a_stale_owner_advances_nothing,
        postgres("advance", "d.fence = l.fence"),
        sqlite("advance", "d.fence = s.fence"),
    ),
    *kills(
        test_runs.test_another_worker_advances_nothing,
        postgres("advance", "d.locked_by = :worker::text"),
        sqlite("advance", "d.locked_by = :worker"),
    ),
    *kills(
        test_runs.test_a_second_completion_of_a_step_does_not_count,
        postgres("advance", "p.done_at is null as first", "true as first"),
        sqlite("advance", "t.done_at is null", "true"),
    ),
    *kills(
        test_runs.test_a_run_that_was_cancelled_is_not_advanced,
        postgres("advance", "r.status in ('running', 'compensating')"),
        sqlite("advance", "r.status in ('running', 'compensating')"),
    ),
    *kills(
        test_runs.test_cancelling_fences_what_runs_and_discards_what_waits,
        postgres("discard_steps", *_RAISED),
        sqlite("discard_steps", *_RAISED_LITE),
    ),
    *kills(
        test_runs.test_a_signal_between_the_start_of_a_step_and_its_suspension_makes_it_due,
        postgres("suspend", "l.signals <> l.seen", "false"),
        postgres("raise_signals", "signals = signals + 1", "signals = signals"),
        sqlite("suspend", "<> :seen then", "<> :seen and false then"),
        sqlite("raise_signals", "signals = signals + 1", "signals = signals"),
    ),
    *kills(
        test_runs.test_a_signal_wakes_the_step_that_waits_for_it_and_no_other,
        postgres("store_signal", "w.signal = :signal::text"),
        postgres("store_signal", "set run_at = now()", "set run_at = d.run_at"),
        sqlite("store_signal", "w.signal = :signal and", "true and"),
        sqlite("store_signal", "set run_at = {now}", "set run_at = run_at"),
    ),
    *kills(
        test_runs.test_a_stale_owner_suspends_remembers_and_resolves_nothing,
        postgres("suspend", "d.fence = l.fence"),
        postgres("memo", _OWN),
        postgres("resolve_wait", _OWN),
        sqlite("suspend", "fence = :fence and", "true and"),
        sqlite("memo", "d.fence = :fence"),
    ),
    *kills(
        test_runs.test_another_worker_suspends_remembers_and_resolves_nothing,
        postgres("suspend", _OWNER),
        postgres("memo", _OWNER),
        postgres("resolve_wait", _OWNER),
        sqlite("suspend", "locked_by = :worker\n", "true\n"),
        sqlite("memo", "d.locked_by = :worker"),
    ),
    *kills(
        test_runs.test_a_wait_has_one_outcome_and_takes_one_signal,
        postgres("resolve_wait", "not exists (select 1 from w where w.done_at is not null)"),
        postgres("resolve_wait", "g.consumed_by is null"),
        sqlite("resolve_wait", "where changes() > 0", "where true"),
        sqlite("resolve_wait", "t.done_at is null"),
    ),
    *kills(
        test_runs.test_a_completed_step_is_advanced_once,
        postgres("advance_completed", "t.unadvanced"),
        sqlite("advance_completed", "and unadvanced", ""),
    ),
    *kills(
        test_runs.test_items_join_once_and_wake_their_step,
        postgres("woken_step", "least(d.run_at, now())", "d.run_at"),
        postgres("join_counters", "waiting = t.waiting - excluded.arrived", "waiting = t.waiting"),
        sqlite("woken_step", "set run_at = {now}", "set run_at = run_at"),
        sqlite("join_counters", "waiting = t.waiting - excluded.arrived", "waiting = t.waiting"),
    ),
    *kills(
        test_interleaved.test_the_last_item_wakes_a_step_whose_suspension_it_waited_for,
        postgres(
            "woken_step",
            "d.id = any (array[j.delivery_id])",
            "d.id = any (array[j.delivery_id]) and d.status = 'pending'",
        ),
    ),
    *kills(
        test_interleaved.test_steps_of_a_run_that_another_transaction_changes_are_left_for_later,
        postgres("advance", "for no key update {locking}", ""),
        postgres("suspend", "for no key update {locking}", ""),
        postgres("skip_locked", "skip locked", ""),
    ),
    *kills(
        test_interleaved.test_a_value_is_not_remembered_while_another_transaction_takes_the_claim,
        postgres("memo", "for share", ""),
    ),
    *kills(
        test_runs.test_completed_steps_make_the_next_ones_due_and_end_the_run,
        postgres("joined_steps", "j.waiting = 0 and", ""),
        postgres(
            "joined_steps",
            "j.waiting = 0 and",
            "(select t.waiting from {hf}workflow_step t where t.run_id = j.run_id and t.name = j.name) = 0 and",
        ),
        sqlite("joined_steps", "t.waiting = 0"),
    ),
    *kills(
        test_runs.test_pruning_leaves_the_steps_of_an_active_run,
        postgres("of_no_live_run", "r.id = d.message_id", "false"),
        sqlite("of_no_live_run", "r.id = d.message_id", "false"),
    ),
    *kills(
        test_children.test_a_step_meets_the_newest_child_of_its_wait_unless_that_failed,
        postgres("child_of", "r.parent_run = :run_id::uuid"),
        postgres("child_of", "r.parent_wait = :wait::text"),
        postgres("child_of", "r.parent_occurrence = :occurrence::integer"),
        postgres("child_of", "r.status in ('running', 'compensating', 'done')"),
        postgres("child_of", "r.id desc", "r.id"),
        sqlite("child_of", "r.parent_run = :run_id"),
        sqlite("child_of", "r.parent_wait = :wait"),
        sqlite("child_of", "r.parent_occurrence = :occurrence"),
        sqlite("child_of", "r.status in ('running', 'compensating', 'done')"),
        sqlite("child_of", "r.id desc", "r.id"),
    ),
    *kills(
        test_children.test_the_end_of_a_run_cancels_its_children_that_are_active,
        postgres("active_children", "r.parent_run = :run_id::uuid"),
        postgres("active_children", "r.status in ('running', 'compensating')"),
        sqlite("active_children", "r.parent_run = :run_id"),
        sqlite("active_children", "r.status in ('running', 'compensating')"),
    ),
    *kills(
        test_children.test_a_deadline_starts_once_and_ends_a_wait,
        postgres("begin_deadline", "set fence = excluded.fence", "set wake_at = excluded.wake_at"),
        postgres("suspend", ", l.until)", ")"),
        postgres("forget_deadline", "name = :step::text", "false"),
        sqlite("begin_deadline", "set fence = excluded.fence", "set wake_at = excluded.wake_at"),
        sqlite("suspend", "coalesce(:until, {now} + 3155760000000)", "{now} + 3155760000000"),
        sqlite("forget_deadline", "name = :step", "false"),
    ),
    *kills(
        test_children.test_a_stale_owner_starts_no_deadline,
        postgres("begin_deadline", _OWN),
        postgres("begin_deadline", _OWNER),
        sqlite("begin_deadline", "d.fence = :fence"),
        sqlite("begin_deadline", "d.locked_by = :worker"),
    ),
    *kills(
        test_children.test_the_form_of_a_result_is_stored_with_it_and_forgotten_with_it,
        postgres("advance", "version = null, ", ""),
        postgres("store_version", "version = :version::integer", "version = null"),
        sqlite("advance", "version = null, ", ""),
        sqlite("store_version", "version = :version", "version = null"),
    ),
]

DEBOUNCE = [
    *kills(
        test_debounce.test_each_publish_starts_the_quiet_time_again,
        postgres("claim_debounced", "greatest(n.run_at, n.quiet_at) <= now()"),
        sqlite("claim_debounced", "max(d.run_at, d.created_at + :debounce) <= {now}"),
    ),
    *kills(
        test_debounce.test_rows_that_were_published_without_a_delay_wait_for_the_quiet_time_too,
        postgres("claim_debounced", "greatest(n.run_at, n.quiet_at)", "n.run_at"),
        sqlite("claim_debounced", "max(d.run_at, d.created_at + :debounce)", "d.run_at"),
    ),
    *kills(
        test_debounce.test_it_runs_at_the_latest_after_the_longest_wait,
        postgres("claim_debounced", "or o.created_at + :max_wait::interval <= now())", ")"),
        sqlite("claim_debounced", "or o.created_at + :max_wait <= {now})", ")"),
    ),
    *kills(
        test_debounce.test_a_claim_supersedes_a_thousand_of_all_its_keys_together,
        postgres("claim_debounced", ") d\n  limit 1000)", ") d\n  limit 9000)"),
        sqlite("claim_debounced", "d.run_at <= {now})\n  limit 1000)", "d.run_at <= {now})\n  limit 9000)"),
    ),
    *kills(
        test_debounce.test_one_delivery_of_a_key_runs_at_a_time,
        postgres("debounce_blocked", "f.status = 'in_flight'", "f.status = 'none'"),
        sqlite("debounce_blocked", "f.status = 'in_flight'", "f.status = 'none'"),
    ),
    *kills(
        test_debounce.test_a_paused_key_waits,
        postgres("debounce_blocked", "p.consumer = :consumer::text", "false"),
        sqlite("debounce_blocked", "p.consumer = :consumer", "false"),
    ),
    *kills(
        test_debounce.test_many_old_ones_are_superseded_a_thousand_at_a_time_before_the_newest_runs,
        postgres("claim_debounced", "order by d.flow_seq limit 1000) d\n  limit 1000)", "order by d.flow_seq) d)"),
        postgres("claim_debounced", "d.id not in (select f.id from f)", "false"),
        sqlite("claim_debounced", "d.run_at <= {now})\n  limit 1000)", "d.run_at <= {now}))"),
        sqlite("claim_debounced", "d.rowid not in (select m.row from m)", "false"),
    ),
    *kills(
        test_debounce.test_the_newest_runs_after_the_quiet_time_and_supersedes_the_others,
        postgres("claim_debounced", "c.oldest_id <> c.id", "false"),
        postgres("claim_debounced", "fence = d.fence + (a.action <> 'wait')::integer", "fence = d.fence"),
        sqlite("claim_debounced", "c.oldest_row <> c.newest_row", "false"),
        sqlite("claim_debounced", "fence = d.fence + (a.action <> 'wait')", "fence = d.fence"),
    ),
    *kills(
        test_debounce.test_a_suspect_newest_runs_alone_and_supersedes_the_others,
        postgres("claim_debounced", "and n.may_run", ""),
        sqlite("claim_debounced", "not e.blocked and {suspicion}", "not e.blocked"),
    ),
    *kills(
        test_debounce.test_nothing_runs_before_every_due_delivery_has_its_key,
        postgres("claim_debounced", "and {debounce_adopted}", ""),
        sqlite("claim_debounced", "and {debounce_adopted}", ""),
    ),
    *kills(
        test_debounce.test_blocked_keys_do_not_hide_the_others,
        postgres("claim_debounced", "k.blocked and (select count(*) from w) >= 1000", "false"),
        sqlite("claim_debounced", "(select count(*) from w) >= 1000", "false"),
    ),
    *kills(
        test_debounce.test_superseded_deliveries_are_pruned_like_delivered_ones,
        postgres("done", "or (d.discarded_at is not null and d.error_type = 'superseded')", ""),
        sqlite("done", "or (d.discarded_at is not null and d.error_type = 'superseded')", ""),
    ),
    *kills(
        test_debounce.test_deliveries_without_a_key_are_reported_and_not_claimed,
        postgres("claim_debounced", "w.flow_key is null or w.flow_seq is null", "false"),
        sqlite("claim_debounced", "(d.flow_key is null or d.flow_seq is null)", "false"),
    ),
]

GROUPS = [
    *kills(
        test_fan_in.test_only_the_owner_of_the_claim_decides,
        postgres("decide_stage", "d.fence = :fence::bigint"),
        postgres("decide_stage", "d.locked_by = :worker::text"),
        sqlite("decide_stage", "d.fence = :fence"),
        sqlite("decide_stage", "d.locked_by = :worker"),
    ),
    *kills(
        test_fan_in.test_only_a_waiting_job_whose_stage_has_ended_is_woken,
        postgres("unfinished_before", "o.status in ('pending', 'in_flight')", "false"),
        sqlite("unfinished_before", "in ('pending', 'in_flight')", "in ('none')"),
        postgres("wake_stages", "{unfinished_before} is null", "true"),
        postgres("wake_stages", "w.group_id = any (:ids::uuid[])", "true"),
        sqlite("wake_stages", "{unfinished_before} is null", "true"),
        sqlite("wake_stages", "w.group_id in (select value from json_each(:ids))", "true"),
    ),
    *kills(
        test_fan_in.test_jobs_and_results_stay_until_the_next_job_has_ended,
        postgres("of_no_live_run", "where g.delivery_id = d.id offset 0", "where false"),
        postgres("forget_results", "where g.delivery_id = o.delivery_id offset 0", "where false"),
        sqlite("of_no_live_run", "where g.delivery_id = d.id", "where false"),
        sqlite("forget_results", "where g.delivery_id = o.delivery_id", "where false"),
    ),
]

RESULTS = [
    *kills(
        test_result.test_only_a_settled_claim_gets_a_result,
        postgres("keep_results", "d.fence = s.fence"),
        postgres("keep_results", "d.status = 'delivered'"),
        sqlite("keep_results", "d.fence = :fence"),
        sqlite("keep_results", "d.status = 'delivered'"),
    ),
    *kills(
        test_result.test_a_replay_hides_the_result_until_it_is_replaced,
        postgres("outcomes", "r.fence = d.fence"),
        postgres("result_of", "d.fence = r.fence"),
        postgres("keep_results", "result = excluded.result", "result = result.result"),
        postgres("keep_results", "expires_at = excluded.expires_at", "expires_at = result.expires_at"),
        sqlite("outcomes", "r.fence = d.fence"),
        sqlite("result_of", "d.fence = r.fence"),
        sqlite("keep_results", "result = excluded.result", "result = result"),
        sqlite("keep_results", "expires_at = excluded.expires_at", "expires_at = expires_at"),
    ),
    *kills(
        test_result.test_an_expired_result_is_not_read_and_removed,
        postgres("outcomes", "r.expires_at > now()\nwhere", "true\nwhere"),
        postgres("result_of", "r.expires_at > now()"),
        postgres("forget_results", "o.expires_at < now()"),
        sqlite("outcomes", "r.expires_at > {now}\nwhere", "true\nwhere"),
        sqlite("result_of", "r.expires_at > {now}"),
        sqlite("forget_results", "o.expires_at < {now}"),
    ),
    *kills(
        test_result.test_a_result_outlives_its_delivery_until_it_expires,
        postgres("outcomes", "and r.expires_at > now()\n  and", "and"),
        postgres("prune_deliveries", "o.fence <> d.fence"),
        sqlite("outcomes", "and r.expires_at > {now}\n  and", "and"),
        sqlite("prune_deliveries", "fence <> :fence"),
    ),
    *kills(
        test_result.test_the_result_of_an_earlier_cycle_goes_with_its_delivery,
        postgres("prune_deliveries", "o.fence <> d.fence", "false"),
        sqlite("prune_deliveries", "fence <> :fence", "false"),
    ),
]

PROGRESS = [
    *kills(
        test_progress.test_only_the_owner_of_the_delivery_reports_and_later_reports_replace_earlier_ones,
        postgres("report_progress", "d.fence = s.fence"),
        postgres("report_progress", "fraction = excluded.fraction", "fraction = p.fraction"),
        postgres("progress_of", "d.fence = p.fence"),
        sqlite("report_progress", "d.fence = :fence"),
        sqlite("report_progress", "fraction = excluded.fraction", "fraction = fraction"),
        sqlite("progress_of", "d.fence = p.fence"),
    ),
    *kills(
        test_progress.test_a_report_that_is_late_does_not_replace_that_of_a_later_run,
        postgres("report_progress", "p.fence <= excluded.fence"),
        sqlite("report_progress", "fence <= excluded.fence"),
    ),
    *kills(
        test_progress.test_a_delivered_run_has_no_progress_and_a_failed_one_keeps_it_until_it_runs_again,
        postgres("progress_of", "d.status <> 'delivered'"),
        postgres("report_progress", "d.status <> 'delivered'"),
        postgres("prune_progress", "d.fence = o.fence"),
        postgres("prune_progress", "d.status <> 'delivered'"),
        postgres("forget_progress", "p.fence = s.fence"),
        sqlite("progress_of", "d.status <> 'delivered'"),
        sqlite("report_progress", "d.status <> 'delivered'"),
        sqlite("prune_progress", "d.fence = o.fence"),
        sqlite("prune_progress", "d.status <> 'delivered'"),
        sqlite("forget_progress", "fence = :fence"),
    ),
]

REMOVING = [
    *kills(
        test_removal.test_a_held_claim_goes_with_its_message_and_all_that_belongs_to_it,
        postgres("claimed_rows", "d.fence = s.fence"),
        postgres("claimed_rows", "d.locked_by = :worker::text"),
        sqlite("remove_deliveries", "fence = :fence and {owned}", "{owned}"),
        sqlite("claimed_rows", "locked_by = :worker"),
    ),
    *kills(
        test_removal.test_a_message_that_something_else_needs_stays,
        postgres("remove_deliveries", "m.key is null"),
        postgres("remove_deliveries", "m.sub_epoch = 9223372036854775807"),
        postgres("remove_deliveries", "where x.message_id = m.id", "where false"),
        sqlite("remove_deliveries", "key is null"),
        sqlite("remove_deliveries", "sub_epoch = 9223372036854775807"),
        sqlite("remove_deliveries", "where x.message_id = :message_id", "where false"),
    ),
    *kills(
        test_removal.test_two_deliveries_of_a_message_that_end_together_take_it_with_them,
        postgres("remove_deliveries", "x.id <> all (array(select d.id from d))"),
    ),
    *kills(
        test_removal.test_a_result_stays_without_its_delivery_and_that_of_an_earlier_cycle_goes,
        postgres("remove_deliveries", "o.fence <> d.fence", "false"),
        postgres("remove_deliveries", "o.fence <> d.fence"),
        sqlite("remove_deliveries", "fence <> :fence", "false"),
        sqlite("remove_deliveries", "fence <> :fence"),
    ),
    *kills(
        test_removal.test_only_a_delivered_row_is_removed_after_its_completion,
        postgres("delivered_rows", "d.status = 'delivered'"),
        postgres("delivered_rows", "d.fence = s.fence"),
        sqlite("delivered_rows", "status = 'delivered'"),
    ),
]

MUTANTS = [
    *REMOVING,
    *PROGRESS,
    *RESULTS,
    *WORKFLOWS,
    *OPERATORS,
    *DEBOUNCE,
    *BATCHES,
    *FLOW,
    *SETTLING,
    *REPLAYING,
    *OPERATING,
    *CLAIMING,
    *LANES,
    *PUBLISHING,
    *SCHEDULING,
    *GROUPS,
    *PRUNING,
    *PROJECTING,
]
