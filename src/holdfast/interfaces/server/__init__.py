"""The standalone server: console, HTTP API, health checks and metrics on one port.

`standalone` builds the application and checks that it is not exposed without authentication. `connection` gives each
HTTP connection deadlines and limits their number, so that slow clients cannot block others. `holdfast console` and
`holdfast demo` start it; an app that mounts the console or the API does not need it.
"""
