"""Failure drills: each breaks something on purpose in a temporary store and checks what Holdfast promises then.

`drills` contains the drills, `report` runs one and collects its checks, `scratch` creates and removes the temporary
store, `provider` is an HTTP service that a drill can stop or make reject tokens. `holdfast drill` runs them.
"""
