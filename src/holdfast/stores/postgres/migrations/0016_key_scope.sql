-- The scope of a key in addition to its source: the name of a job or command, for all applications.
alter table {hf}message add column key_scope text;
create unique index message_key_scope on {hf}message (key_scope, key) where key_scope is not null;
