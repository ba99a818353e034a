"""RabbitMQ over AMQP 0-9-1: `rabbitmq.queue("payments")`, `rabbitmq.exchange("events")`. Needs `holdfast[rabbitmq]`.

A queue is a source, and a target; an exchange is a target, routed by the message's type. A queue is used as it is; one
that is not there is made, durable and of the kind that a majority of nodes holds (quorum).
"""

from holdfast.brokers.rabbitmq.place import Exchange, Queue, exchange, queue

__all__ = ["Exchange", "Queue", "exchange", "queue"]
