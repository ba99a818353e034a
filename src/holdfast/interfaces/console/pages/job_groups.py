"""Pages for groups of jobs."""

from holdfast.interfaces.console.request import ConsoleRequest, HtmlPage
from holdfast.interfaces.presentation.filters import parse_id, parse_range

_PAGE = 20


async def job_groups(request: ConsoleRequest) -> HtmlPage:
    now = await request.ops.now()
    chosen = request.chosen("since", "until")
    before = parse_id(request.query["before"]) if "before" in request.query else None
    found = await request.ops.job_groups(limit=_PAGE, before=before, **parse_range(chosen, now))
    return HtmlPage(
        "job_groups.html", {"rows": found.items, **request.page_links(found.next), "chosen": chosen, "now": now}
    )


async def job_group(request: ConsoleRequest) -> HtmlPage:
    detail = await request.ops.job_group(parse_id(request.http.path_params["id"]))
    return HtmlPage("job_group.html", {"detail": detail, "group": detail.progress, "now": detail.now})
