"""A shop whose orders are relayed to Redis: the processes that the tests kill."""

import os

from holdfast import Holdfast
from holdfast.brokers import redis
from tests.engine.programs import crash

crash.install()

hf = Holdfast(os.environ["HOLDFAST_DSN"])
hf.relay("order.*", to=redis.stream(os.environ["HOLDFAST_TEST_STREAM"]), name="orders-out", lease="2s")
