-- name: was_seen
-- Whether a consumer has handled a key within its window.
select 1 from {hf}seen s where s.consumer = :consumer::text and s.key = :key::text and s.expires_at > now()

-- name: record_seen
-- Records that a consumer has handled a key.
insert into {hf}seen (consumer, key, expires_at) values (:consumer::text, :key::text, now() + :window::interval)
on conflict (consumer, key) do update set expires_at = excluded.expires_at

-- name: forget_seen
-- Removes expired keys.
delete from {hf}seen where expires_at < now()

-- name: record_reruns
-- Marks deliveries whose next runs ignore the deduplication window of their consumer, in each kind of dedupe store.
insert into {hf}seen (consumer, key, expires_at)
select d.consumer, 'rerun ' || d.id::text, now() + :window::interval from {hf}delivery d where d.id = any (:ids::uuid[])
on conflict (consumer, key) do update set expires_at = excluded.expires_at
