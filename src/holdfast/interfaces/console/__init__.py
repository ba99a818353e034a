"""The web console: what broke, since when, how many alike, and the way to mend it.

`app.py` puts it together, `guard.py` decides who may do what, a module per area holds its screens.
"""
