-- The type of the message of a failed delivery, so that dead letters of a rare type are found by an index. It is written
-- when a delivery fails: an index of messages by type would slow down every publish.
alter table {hf}delivery add column failed_type text;
create index {hf}delivery_type on {hf}delivery (failed_type, id) where status = 'failed';
update {hf}delivery set failed_type = (select m.type from {hf}message m where m.id = message_id) where status = 'failed';
