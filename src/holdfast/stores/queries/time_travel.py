"""Time travel for tests: the database's clock cannot be set, so the stored times are moved instead."""

from datetime import timedelta
from uuid import UUID

from holdfast.stores.operation import Query, Steps, operation


@operation
def travel(by: timedelta) -> Steps[None]:
    """Moves all stored times `by` into the past."""
    yield Query("travel", {"by": by})


@operation
def abandon(delivery_id: UUID) -> Steps[None]:
    """Takes an in-flight delivery away from its owner, like another worker after the lease has expired."""
    yield Query("abandon", {"delivery_id": delivery_id})


@operation
def orphan(delivery_id: UUID) -> Steps[None]:
    """Assigns an in-flight delivery to a worker that does not exist, as if its worker had died."""
    yield Query("orphan", {"delivery_id": delivery_id})


@operation
def drop_schema() -> Steps[None]:
    """Removes all tables of this schema or prefix."""
    yield Query("drop_schema")
