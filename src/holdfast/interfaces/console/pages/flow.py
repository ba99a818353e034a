"""Pages for flow control: the consumers that have any, the keys of one of them, and tenants."""

import shlex

from holdfast.interfaces.console.pages.name_list import contains, name_list
from holdfast.interfaces.console.request import PAGE, ConsoleRequest, HtmlPage
from holdfast.interfaces.presentation.filters import parse_choice
from holdfast.interfaces.presentation.flow import flow_text
from holdfast.ops.queries.flow_keys import KeyFilter
from holdfast.ops.queries.tenants import BY_TENANT

_STATES = (
    (KeyFilter.BLOCKED, "blocked by a dead letter"),
    (KeyFilter.PAUSED, "paused"),
    (KeyFilter.LIMITED, "at the limit"),
    (KeyFilter.RATED, "at the rate"),
    (KeyFilter.WAITING, "waiting"),
    (KeyFilter.RUNNING, "running"),
)


async def flow(request: ConsoleRequest) -> HtmlPage:
    """The keys of the given consumer, or the list of consumers with flow control."""
    query = request.query
    if "consumer" not in query:
        found = await request.cache.read("consumers", lambda ops: ops.consumers())
        keyed = [one for one in found if one.flow is not None]
        filters = {"name": contains(lambda one: one.name, lambda one: flow_text(one.flow))}
        return HtmlPage("flow.html", name_list(request, keyed, lambda one: one.name, filters))
    chosen = {name: query[name] for name in ("state", "prefix") if name in query}
    state = KeyFilter(parse_choice(chosen.get("state", KeyFilter.ALL), KeyFilter, "state of a key"))
    # Not from `query`: the key '' is a cursor too.
    after = request.http.query_params.get("after")
    page = await request.ops.keys(
        query["consumer"], state=state, prefix=chosen.get("prefix", ""), after=after, limit=PAGE
    )
    options = "".join(f" --{name} {shlex.quote(value)}" for name, value in chosen.items())
    return HtmlPage(
        "flow_keys.html",
        {
            "page": page,
            "rows": page.keys,
            "page_words": ("First", "Next"),
            "now": page.now,
            "states": _STATES,
            "chosen": chosen,
            **request.page_links(page.next, cursor="after"),
            "command": f"holdfast consumers keys {shlex.quote(page.consumer)}{options}",
        },
    )


async def tenants(request: ConsoleRequest) -> HtmlPage:
    """The pending, running and failed deliveries of each tenant; with `tenant`, of each consumer of this tenant."""
    by = request.query.get("by", BY_TENANT).strip()
    # Not from `query`: the deliveries without a tenant have the name ''.
    tenant = request.http.query_params.get("tenant")
    stats = await request.cache.stats()
    if by == BY_TENANT and tenant is None:
        page = await request.cache.read("tenants", lambda ops: ops.tenants(known_loads=stats.loads))
    else:
        page = await request.ops.tenants(by=by, tenant=tenant, known_loads=stats.loads)
    rows = page.tenants if tenant is None else page.consumers
    filters = {"name": contains(lambda one: one.tenant)}
    listed = name_list(request, rows, lambda one: f"{one.tenant} {one.consumer}", filters)
    if by != BY_TENANT:
        listed["chosen"]["by"] = by
    return HtmlPage("tenants.html", {**listed, "page": page, "tenant": tenant, "by": by, "default": BY_TENANT})
