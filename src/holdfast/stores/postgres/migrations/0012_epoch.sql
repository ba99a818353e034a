-- Every publish reads the newest subscription epoch: with thousands of endpoints it must not read all rows.
create index subscription_epoch on {hf}subscription (epoch);
