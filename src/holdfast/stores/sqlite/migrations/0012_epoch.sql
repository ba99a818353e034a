-- Every publish asks for the newest subscription: with thousands of endpoints that must not read them all.
create index {hf}subscription_epoch on {hf}subscription (epoch);
