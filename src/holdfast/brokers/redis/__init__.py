"""Redis Streams: `redis.stream("payments", group="shop")`. Needs `holdfast[redis]` and Redis 6.2.

With a group, a stream is a source; pending entries of a dead consumer are claimed by another. Every stream is a target.
The field `body` of an entry is the record, and the other fields are its headers. An entry without `body` is read as a
JSON object of all its fields, as text.
"""

from holdfast.brokers.redis.stream import RedisStream, stream

__all__ = ["RedisStream", "stream"]
