"""The model that Django's admin lists. `manage.py migrate` creates Holdfast's tables with Holdfast's own migrations."""

from typing import Any

from django.db import models


class NoDeliveries(models.Manager):
    """Finds nothing, so that `manage.py dumpdata` does not query a table that does not exist."""

    def get_queryset(self) -> Any:
        return super().get_queryset().none()


class AdminDelivery(models.Model):
    """A delivery. It has no table in Django, and queries find nothing: use `hf.ops.sync.deliveries()`."""

    objects = NoDeliveries()

    class Meta:
        managed = False
        base_manager_name = "objects"
        default_permissions = ("view",)
        verbose_name = "delivery"
        verbose_name_plural = "deliveries"
