"""A read-only page in Django's admin: the state of the work, the dead letters, and links into the web console."""

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.template.response import TemplateResponse

from holdfast.core.errors import HoldfastError
from holdfast.core.values.bounded_count import BoundedCount
from holdfast.django.app import project_app
from holdfast.django.models import AdminDelivery
from holdfast.stores.queries.query import Filter

_NEWEST = 50


@admin.register(AdminDelivery)
class DeliveryAdmin(admin.ModelAdmin):
    """Shows counts and the newest dead letters. It changes nothing: actions belong to the console, which audits them."""

    def has_add_permission(self, request: HttpRequest, *_: Any) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, *_: Any) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, *_: Any) -> bool:
        return False

    def get_urls(self) -> list[Any]:
        """Serves only the list: the web console shows single deliveries."""
        return [one for one in super().get_urls() if one.name == "holdfast_admindelivery_changelist"]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        app = project_app()
        console = (app.configuration.console_url or "").rstrip("/")
        try:
            operations = app.ops.sync
            queues, dead = operations.queues(), operations.deliveries(Filter(dead=True), limit=_NEWEST)
            problem = ""
        except HoldfastError as error:
            queues, dead, problem = [], [], str(error)
        context = {
            **self.admin_site.each_context(request),
            "title": "Deliveries",
            "opts": self.model._meta,
            "console": console,
            "problem": problem,
            "queues": queues,
            "total": f"{sum((queue.failed for queue in queues), BoundedCount()):,}",
            "dead": [(one, f"{console}/deliveries/{one.delivery.id}") for one in dead],
            **(extra_context or {}),
        }
        return TemplateResponse(request, "holdfast/deliveries.html", context)
