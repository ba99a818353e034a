"""The model that Django's admin lists. `manage.py migrate` creates Holdfast's tables with Holdfast's own migrations."""

from django.db import models


class AdminDelivery(models.Model):
    """A delivery. It has no table in Django and cannot be queried: use `hf.ops.sync.deliveries()`."""

    class Meta:
        managed = False
        default_permissions = ("view",)
        verbose_name = "delivery"
        verbose_name_plural = "deliveries"
