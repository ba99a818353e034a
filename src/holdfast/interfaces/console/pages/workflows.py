"""Pages for workflow runs."""

import secrets
import shlex
from typing import Any

from holdfast.interfaces.console.pages.workflow_graph import run_graph
from holdfast.interfaces.console.request import PAGE, ConsoleRequest, HtmlPage
from holdfast.interfaces.presentation.filters import RUN_FIELDS, parse_id, parse_range, run_filter
from holdfast.interfaces.presentation.workflows import (
    duration,
    fork_steps,
    item_notes,
    next_commands,
    shown_steps,
    step_label,
    step_note,
    timeline,
    waiting_for_trigger,
)
from holdfast.stores.workflows.run_page import RUN_STATES


async def workflows(request: ConsoleRequest) -> HtmlPage:
    now = await request.ops.now()
    chosen = request.chosen(*RUN_FIELDS)
    parsed: dict[str, Any] = {**chosen, **parse_range(chosen, now)}
    before = parse_id(request.query["before"]) if "before" in request.query else None
    found = await request.ops.workflow_runs(run_filter(**parsed), limit=PAGE, before=before)
    counts = await request.cache.read("workflows", lambda ops: ops.workflows())
    return HtmlPage(
        "workflows.html",
        {
            "rows": found.items,
            "counts": counts,
            "workflow_names": [one.workflow for one in counts],
            **request.page_links(found.next),
            "chosen": chosen,
            "states": RUN_STATES,
            "now": now,
            "duration": duration,
            "command": "holdfast workflows list"
            + "".join(f" --{name} {shlex.quote(value)}" for name, value in chosen.items()),
        },
    )


async def workflow_run(request: ConsoleRequest) -> HtmlPage:
    detail = await request.ops.workflow_run(parse_id(request.http.path_params["id"]))
    steps = shown_steps(detail)
    waits = dict.fromkeys(str(one.signal) for one in detail.remembered if one.signal and one.done_at is None)
    return HtmlPage(
        "workflow_run.html",
        {
            "detail": detail,
            "run": detail.listed.run,
            "steps": steps,
            "items": item_notes(detail),
            "graph": run_graph(detail),
            "events": timeline(detail),
            "values": [(step_label(step), step.result) for step in steps if step.result not in (None, "null")],
            "memos": [one for one in detail.remembered if ":" not in one.name and one.result is not None],
            "waits": list(waits),
            "triggers": waiting_for_trigger(detail),
            "fork_steps": fork_steps(detail),
            # A form that is sent twice forks the run once.
            "fork_key": f"console:{secrets.token_hex(8)}",
            "commands": list(next_commands(detail)),
            "now": detail.now,
            "duration": duration,
            "step_label": step_label,
            "step_note": lambda step: step_note(detail, step),
        },
    )
