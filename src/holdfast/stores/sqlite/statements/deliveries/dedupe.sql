-- name: was_seen
-- Whether a consumer has handled a key within its window.
select 1 from {hf}seen s where s.consumer = :consumer and s.key = :key and s.expires_at > {now}

-- name: record_seen
-- Records that a consumer has handled a key.
insert into {hf}seen (consumer, key, expires_at) values (:consumer, :key, {now} + :window)
on conflict (consumer, key) do update set expires_at = excluded.expires_at

-- name: forget_seen
-- Removes expired keys.
delete from {hf}seen where expires_at < {now}

-- name: record_reruns
-- Marks deliveries whose next runs ignore the deduplication window of their consumer, in each kind of dedupe store.
insert into {hf}seen (consumer, key, expires_at)
select d.consumer, 'rerun ' || d.id, {now} + :window from {hf}delivery d
where d.id in (select value from json_each(:ids))
on conflict (consumer, key) do update set expires_at = excluded.expires_at
