"""NATS JetStream: a durable pull consumer per group; acknowledgements and publications that the server confirmed.

`nats.stream("PAYMENTS", group="shop")` reads a stream, all of it or the part under `subject`; `nats.subject("payments.>",
group="shop")` finds the stream that holds the subject. Without a group the same values are places to send to.
The streams are made by whoever runs the server; the group's consumer is made here.
"""

from holdfast.brokers.nats.place import NatsPlace, stream, subject

__all__ = ["NatsPlace", "stream", "subject"]
