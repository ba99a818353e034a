"""Pages for groups of jobs."""

from holdfast.interfaces.console.request import ConsoleRequest, HtmlPage
from holdfast.interfaces.presentation.filters import parse_id

_PAGE = 20


async def job_groups(request: ConsoleRequest) -> HtmlPage:
    before = parse_id(request.query["before"]) if "before" in request.query else None
    found = await request.ops.job_groups(limit=_PAGE, before=before)
    return HtmlPage(
        "job_groups.html",
        {
            "rows": found.items,
            "next": request.with_query(before=found.next) if found.next else None,
            "newest": request.with_query(before=None) if before else None,
            "now": await request.ops.now(),
        },
    )


async def job_group(request: ConsoleRequest) -> HtmlPage:
    detail = await request.ops.job_group(parse_id(request.http.path_params["id"]))
    return HtmlPage("job_group.html", {"detail": detail, "group": detail.progress, "now": detail.now})
