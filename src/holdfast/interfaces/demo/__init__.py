"""The demo: a shop takes orders while services and workers fail, and nothing is lost.

`shop.py` is the application. `scenario.py` injects the failures, `invariants.py` checks the result.
"""
