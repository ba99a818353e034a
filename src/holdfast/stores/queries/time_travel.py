"""Moving stored times, for tests: the database's clock cannot be set, but everything it is compared with can."""

from datetime import timedelta
from uuid import UUID

from holdfast.stores.operation import Query, Steps, operation


@operation
def travel(by: timedelta) -> Steps[None]:
    """Makes everything stored look `by` older."""
    yield Query("travel", {"by": by})


@operation
def abandon(delivery_id: UUID) -> Steps[None]:
    """Takes a delivery in flight away from its owner, as another worker would after its lease had ended."""
    yield Query("abandon", {"delivery_id": delivery_id})


@operation
def orphan(delivery_id: UUID) -> Steps[None]:
    """Leaves a delivery in flight under a worker that is no more, as the death of its worker would."""
    yield Query("orphan", {"delivery_id": delivery_id})


@operation
def drop_schema() -> Steps[None]:
    """Removes every table of this schema or prefix."""
    yield Query("drop_schema")
