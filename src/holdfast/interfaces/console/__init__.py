"""The web console: server-rendered pages on top of `ops`, for finding failures and replaying them.

`app` is the ASGI application. Every request passes the checks of `security` (host, origin, CSRF token, role) before a
page function sees it. The page functions are in `overview`, `delivery_pages`, `system_pages` and `plan_pages`;
`actions` lists every change with the role it requires. Page functions read shared data through `stats_cache`, so that
many open pages cost the store as much as one.
"""
