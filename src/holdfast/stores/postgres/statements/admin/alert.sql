-- name: add_alert_group
-- Adds a failure group at its first alert.
insert into {hf}alert (consumer, fingerprint) values (:consumer::text, :fingerprint::text)
on conflict do nothing returning consumer

-- name: alert_group
-- The failures since the last alert of a group, whether another alert is due, and the time until then.
select a.alike, a.told_at + :quiet::interval <= now(), greatest(a.told_at + :quiet::interval - now(), interval '0')
from {hf}alert a where a.consumer = :consumer::text and a.fingerprint = :fingerprint::text for update

-- name: tell_alert_group
-- Records an alert for a group.
update {hf}alert set told_at = now(), alike = 0
where consumer = :consumer::text and fingerprint = :fingerprint::text

-- name: count_alert_group
-- Counts failures during the quiet period of a group.
update {hf}alert set alike = alike + :alike::bigint
where consumer = :consumer::text and fingerprint = :fingerprint::text

-- name: forget_alert_groups
-- Removes groups without a recent alert.
delete from {hf}alert where told_at < now() - :older_than::interval
