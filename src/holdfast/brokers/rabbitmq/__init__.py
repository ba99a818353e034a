"""RabbitMQ over AMQP 0-9-1: `rabbitmq.queue("payments")`, `rabbitmq.exchange("events")`. Needs `holdfast[rabbitmq]`.

A queue is a source and a target; an exchange is a target, and its routing key is the message's type. An existing queue
is used unchanged. A missing one is created as a durable quorum queue.
"""

from holdfast.brokers.rabbitmq.queue import RabbitExchange, RabbitQueue, exchange, queue

__all__ = ["RabbitExchange", "RabbitQueue", "exchange", "queue"]
