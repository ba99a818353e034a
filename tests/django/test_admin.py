"""The page of Holdfast in Django's admin: it shows and links, and changes nothing."""

import asyncio
from typing import Any

import pytest
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.test import RequestFactory
from django.urls import NoReverseMatch, reverse

import holdfast.django.admin as page
from holdfast import WorkerOptions
from holdfast.django.app import DjangoHoldfast
from holdfast.django.configuration import read_configuration
from holdfast.django.models import AdminDelivery


class User:
    """A member of the staff. `rights` are the permissions."""

    is_active = is_staff = is_authenticated = True
    pk, username = 1, "ada"

    def __init__(self, *rights: str) -> None:
        self.rights = rights

    def has_perm(self, name: str, _object: object = None) -> bool:
        return name in self.rights

    def has_module_perms(self, _app: str) -> bool:
        return bool(self.rights)

    def get_username(self) -> str:
        return self.username

    def has_usable_password(self) -> bool:
        return False


def show(user: User) -> str:
    request = RequestFactory().get(reverse("admin:holdfast_admindelivery_changelist"))
    request.user = user
    response = page.DeliveryAdmin(AdminDelivery, admin.site).changelist_view(request)
    return response.render().content.decode()


def test_the_page_shows_queues_and_dead_letters_with_links_and_changes_nothing(
    hf: DjangoHoldfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    @hf.consumer("order.placed", dead_on=(ValueError,), queue="mail")
    def fail(order: dict[str, Any]) -> None:
        raise ValueError("<b>no stock</b>")

    hf.sync.publish("order.placed", {"id": 1})
    asyncio.run(hf.work(WorkerOptions(until_idle=True, cron=False)))
    (letter,) = hf.ops.sync.deliveries()
    monkeypatch.setattr(page, "project_app", lambda: hf)
    text = show(User("holdfast.view_admindelivery"))
    assert "<td>mail</td>" in text
    assert "ValueError: &lt;b&gt;no stock" in text
    assert "The newest 1 of 1 dead letters" in text
    assert "Holdfast &rsaquo; Deliveries" in text
    assert text.count('<div class="results">') == 2, "each table scrolls separately"
    assert "<b>no stock" not in text
    assert f"<td>{letter.delivery.id}</td>" in text
    hf.configuration = read_configuration({"CONSOLE_URL": "https://ops.example.com/hf/"})
    assert f'<a href="https://ops.example.com/hf/deliveries/{letter.delivery.id}">' in show(
        User("holdfast.view_admindelivery")
    )
    with pytest.raises(PermissionDenied):
        show(User())
    for name in ("add", "change", "delete"):
        with pytest.raises(NoReverseMatch):
            reverse(f"admin:holdfast_admindelivery_{name}", args=() if name == "add" else (1,))
