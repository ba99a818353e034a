"""Front ends for people and programs. Each reads and acts only through `holdfast.ops`.

`cli` is the `holdfast` command, `console` the web console, `api` the HTTP API, `mcp` the server for agents and `metrics`
the Prometheus endpoint. They are independent of each other and share `presentation`: filters, operator actions, JSON
views and formatting. `server` serves console, API and metrics on one port. `demo` and `drill` run Holdfast against
failing services and workers. The import contract is in `pyproject.toml`.
"""
