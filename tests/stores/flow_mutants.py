"""Guards of the claims with flow control, each with the scenario that must fail when the guard is gone."""

from functools import partial

from tests.stores.deliveries import test_flow_claim as claims
from tests.stores.messages import test_flow_publish as publishing
from tests.stores.mutation import Mutant, kills, postgres, sqlite


def both(
    where: str, guard: str, left: str = "true", *, lite: str | None = None, lite_left: str | None = None
) -> list[Mutant]:
    """The same mutation in both dialects; `lite` is the text of SQLite if it differs."""
    return [postgres(where, guard, left), sqlite(where, lite or guard, left if lite_left is None else lite_left)]


_KEY = "f.flow_key = n.flow_key"
_PAUSED = "p.flow_key = n.flow_key"
KNOWN_KEYS = partial(
    claims.test_a_walk_reads_known_keys_from_their_floors_and_finds_unknown_ones, options={"fair_by": "k"}
)

FLOW = [
    *kills(
        claims.test_a_limit_by_key_counts_each_key,
        *both("room_limit", _KEY),
        *both("flow_chosen", "r.nth <= r.room"),
    ),
    *kills(
        claims.test_an_expired_lease_counts_until_it_is_taken_over,
        *both("room_limit", "f.status = 'in_flight'", "f.status = 'in_flight' and f.locked_by <> 'dead'"),
    ),
    *kills(
        claims.test_a_global_limit_counts_every_worker,
        *both("cap_limit", "f.status = 'in_flight'", "f.status = 'in_flight' and f.locked_by = 'w2'"),
    ),
    *kills(
        partial(claims.test_a_rate_allows_so_many_claims_in_a_window_with_retries, by="k"),
        *both("ledger_keys", "n = s.n + excluded.n", "n = excluded.n", lite="n = n + excluded.n"),
        *both("room_rate", "s.flow_key = n.flow_key", "s.flow_key = 'other'"),
    ),
    *kills(
        partial(claims.test_a_rate_allows_so_many_claims_in_a_window_with_retries, by=None),
        *both("ledger_all", "n = s.n + excluded.n", "n = excluded.n", lite="n = n + excluded.n"),
        *both("cap_rate", "s.flow_key = ''", "s.flow_key = 'other'"),
    ),
    *kills(
        claims.test_the_next_token_of_a_rate_is_used_when_it_is_due,
        postgres("room_rate", "s.bucket > (select t.now from t) - :rate_window::interval - :grain::interval"),
        sqlite("room_rate", "s.bucket > {now} - :rate_window - :grain"),
    ),
    *kills(
        claims.test_an_ordered_key_runs_one_at_a_time_in_the_order_of_publish,
        *both("room_head", "f.status = 'in_flight'", "f.status = 'in_flight' and f.locked_by = ''"),
        *both("rank_order", "w.flow_seq", "w.flow_seq desc"),
        *both("flow_chosen_heads", "least({limit}{room}) > 0", lite="min(:size, :size{room}) > 0"),
    ),
    *kills(
        claims.test_a_head_that_waits_for_its_retry_holds_up_its_key,
        *both("room_head", "h.status = 'pending'", "h.status = 'pending' and h.attempts = 0"),
        # Order by what is due.
        *both(
            "room_head",
            "h.status = 'pending'",
            "h.status = 'pending' and h.run_at <= now()",
            lite_left="h.status = 'pending' and h.run_at <= {now}",
        ),
    ),
    *kills(
        claims.test_priority_does_not_reorder_an_ordered_key,
        postgres("room_head", "h.status = 'pending'", "h.status = 'pending' and h.priority = :priority::smallint"),
        sqlite("room_head", "h.status = 'pending'", "h.status = 'pending' and h.priority = :priority"),
    ),
    *kills(
        partial(claims.test_a_dead_letter_blocks_its_key, cursor=None),
        *both("room_dead", "n.flow_seq > (", "n.flow_seq < ("),
        *both("room_dead", "x.flow_key = n.flow_key", "x.flow_key = 'other'"),
        postgres("room_dead", "x.discarded_at is null"),
    ),
    *kills(
        partial(claims.test_a_paused_key_is_not_claimed, options={"fair_by": "k"}),
        *both("room_pause", _PAUSED, "p.flow_key = 'other'"),
    ),
    *kills(
        claims.test_the_lanes_with_a_due_delivery_are_found_together,
        postgres("due_lanes", "d.run_at <= now()"),
        sqlite("due_lanes", "d.run_at <= {now}"),
        postgres("due_lanes", "d.priority = l.priority"),
        sqlite("due_lanes", "d.priority = l.value ->> 3"),
        *both("due_lanes", "{suspicion}"),
        *both("due_lanes", "f.status = 'in_flight'", "f.status = 'in_flight' and f.locked_by = ''"),
        *both("due_lanes", "l.most > (", "l.most >= (", lite="l.value ->> 6 > (", lite_left="l.value ->> 6 >= ("),
        *both("due_lanes", "f.consumer = l.consumer", lite="f.consumer = l.value ->> 1"),
    ),
    *kills(
        claims.test_a_walk_gives_each_key_a_turn_and_continues_after_its_last_key,
        *both("turn_key", "r.nth, r.turn", "r.run_at, r.id"),
    ),
    *kills(
        claims.test_a_walk_continues_after_the_last_key_that_had_its_turn,
        postgres("cursor_walk", "x.turn desc limit 1", "x.turn desc limit 0"),
        sqlite("cursor_walk", "u.flow_key desc limit 1", "u.flow_key desc limit 0"),
    ),
    *kills(
        KNOWN_KEYS,
        postgres("flow_walk_floors", "d.flow_key < (:known::text[])[p.next]"),
        postgres("flow_walk_floors", "s.step > 0 and s.first is not null", "s.step > 0"),
        postgres("flow_walk_floors", "timestamptz '-infinity'", "timestamptz 'infinity'"),
        postgres("flow_walk_floors", "(k.floor is not null)::integer", "1"),
        postgres("flow_walk_rows", "(p.key, p.first)", "(p.key, timestamptz '-infinity')"),
    ),
    *kills(
        claims.test_ordered_keys_take_turns_by_their_oldest_delivery,
        *both("turn_heads_due", "n.run_at, n.id", "n.run_at desc, n.id"),
    ),
    *kills(
        claims.test_a_limit_and_an_order_combine,
        *both("cap_limit", "f.flow_key is not null", "f.flow_key = 'other'"),
    ),
    *kills(
        claims.test_a_queue_limits_all_its_consumers_together,
        postgres("cap_queue_limit", "f.queue = :queue::text", "f.queue = :consumer::text"),
        sqlite("cap_queue_limit", "f.queue = :queue", "f.queue = :consumer"),
        *both("ledger_queue", "count(*) > 0", "count(*) > 9"),
    ),
    *kills(
        claims.test_a_suspect_behind_the_head_of_its_key_waits,
        *both("room_head", "n.flow_seq > (", "n.flow_seq < ("),
    ),
    *kills(
        claims.test_a_delivery_that_is_not_due_is_not_claimed,
        postgres("flow_window", "d.run_at <= now()"),
        sqlite("flow_window", "d.run_at <= {now}"),
    ),
    *kills(
        claims.test_an_order_waits_until_every_delivery_has_its_place,
        *both("cap_adopted", "then 0", "then 9"),
    ),
    *kills(
        publishing.test_an_ordered_delivery_has_the_position_of_its_message,
        postgres("publish_flow", "d.flow_key, s.position", "d.flow_key, null::bigint"),
        sqlite("publish_flow", "case when :ordered then", "case when 0 then"),
    ),
    *kills(
        publishing.test_one_call_with_keys_keeps_its_order,
        *both("place_deliveries", "over (order by g.place)", "over (order by g.position)"),
    ),
    *kills(
        claims.test_a_lane_is_searched_for_deliveries_without_a_key_page_by_page,
        *both("flow_unkeyed", "where s.unkeyed", "where true"),
        postgres("flow_unkeyed", "(d.run_at, d.id) > (:after_at::timestamptz, :after_id::uuid)"),
        sqlite("flow_unkeyed", "(d.run_at, d.id) > (:after_at, :after_id)"),
        postgres("flow_unkeyed", "(select count(*) from s) >= :scanned::bigint", "false"),
        sqlite("flow_unkeyed", "(select count(*) from s) >= :scanned", "false"),
    ),
    *kills(
        claims.test_buckets_of_consumers_without_a_rate_are_removed,
        postgres("forget_old_starts", "2 * interval '1 s'", "0 * interval '1 s'"),
        sqlite("forget_old_starts", "2000 *", "0 *"),
        *both(
            "forget_old_starts",
            "s.bucket < now() -",
            "s.bucket < now() +",
            lite="bucket < {now} -",
            lite_left="bucket < {now} +",
        ),
    ),
    *kills(
        claims.test_what_became_due_is_claimed_before_what_is_older,
        postgres("flow_window", "(d.run_at, d.id) >= (:floor_at::timestamptz, :floor_id::uuid)"),
        sqlite("flow_window", "(d.run_at, d.id) >= (:floor_at, :floor_id)"),
        *both("edge_last", "w.id from w order by w.run_at desc, w.id desc", "w.id from w order by w.run_at, w.id"),
    ),
]
