-- The type of the message of a failed delivery, so that dead letters of a rare type are found by an index. It is written
-- when a delivery fails: an index of messages by type would slow down every publish.
alter table {hf}delivery add column if not exists failed_type text;
create index if not exists delivery_type on {hf}delivery (failed_type, id) where status = 'failed';
update {hf}delivery d set failed_type = m.type from {hf}message m where m.id = d.message_id and d.status = 'failed';
