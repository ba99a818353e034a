-- Failed deliveries of an error type in the order of ids; only a failure writes it.
create index if not exists delivery_error on {hf}delivery (error_type, id) where status = 'failed';
