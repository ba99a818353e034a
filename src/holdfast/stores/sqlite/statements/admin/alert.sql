-- name: add_alert_group
-- Notes a group of failures that is told of for the first time.
insert into {hf}alert (consumer, fingerprint) values (:consumer, :fingerprint) on conflict do nothing returning consumer

-- name: alert_group
-- How many came since a group was told of, whether it may be told of again, and how long until then.
select a.alike, a.told_at + :quiet <= {now}, max(a.told_at + :quiet - {now}, 0)
from {hf}alert a where a.consumer = :consumer and a.fingerprint = :fingerprint

-- name: tell_alert_group
-- A group is told of now.
update {hf}alert set told_at = {now}, alike = 0 where consumer = :consumer and fingerprint = :fingerprint

-- name: count_alert_group
-- So many more came while a group is quiet.
update {hf}alert set alike = alike + :alike where consumer = :consumer and fingerprint = :fingerprint

-- name: forget_alert_groups
-- Removes groups that have been quiet for long.
delete from {hf}alert where told_at < {now} - :older_than
