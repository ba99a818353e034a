"""NATS JetStream: `nats.stream("PAYMENTS", group="shop")`, `nats.subject("payments.>", group="shop")`. Needs `holdfast[nats]`.

`stream` names a stream, or the part of it under `subject`; `subject` finds the stream that contains the subject. With a
group, both are a source: the group is a durable pull consumer, created here. Without one they are targets. The server
confirms each acknowledgment and each message. The operator of the server creates the streams.
"""

from holdfast.brokers.nats.stream import NatsStream, stream, subject

__all__ = ["NatsStream", "stream", "subject"]
