-- How long the delivered rows of a consumer are kept (`keep="1h"`), in seconds; null for the retention of the store.
alter table {hf}consumer add column keep real;
