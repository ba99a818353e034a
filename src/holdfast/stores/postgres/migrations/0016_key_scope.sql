-- What a key is unique within besides its source: a job's or a command's name, whichever application enqueues it.
alter table {hf}message add column key_scope text;
create unique index message_key_scope on {hf}message (key_scope, key) where key_scope is not null;
