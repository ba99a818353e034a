"""The web console: server-rendered pages on top of `ops`, for finding failures and replaying them.

`app` is the ASGI application. Every request passes the checks of `security` (host, origin, CSRF token, role) before a
page function of `pages` sees it. `actions` lists every change with the role it requires. Page functions read shared
data through `stats_cache`, so that many open pages cost the store as much as one.
"""
