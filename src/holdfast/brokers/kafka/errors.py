"""What the client's errors mean for a subscription."""

from confluent_kafka import KafkaError

from holdfast.core.errors import BrokerUnavailable

# The group is rebalancing. What was not committed is on revocation, or is read again by the next owner.
REBALANCING = frozenset(
    {
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.UNKNOWN_MEMBER_ID,
    }
)
# The cluster is moving the group to another coordinator, or a connection broke. The client finds the new one.
TRANSIENT = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_COORDINATOR,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError._WAIT_COORD,
    }
)
_SAME_INSTANCE = frozenset({KafkaError.FENCED_INSTANCE_ID, KafkaError.UNRELEASED_INSTANCE_ID})


def unavailable(source: str, error: KafkaError) -> BrokerUnavailable:
    """The error that ends a subscription."""
    cause = error.str()
    if error.code() in _SAME_INSTANCE or "nstance ID" in cause:
        # A fatal error has a separate code and names the cause in its text.
        cause = f"two workers use the same group.instance.id; give each its own. {cause}"
    return BrokerUnavailable(source, cause)
