"""The demo: a shop takes orders while services and workers fail, and nothing is lost.

`shop` is the application that the workers run, `customers` place the orders, `services` are a mail server and a webhook
receiver that can be stopped. `scenario` injects the failures through `runner`, `screen` shows the progress, and
`invariants` checks at the end that every order was processed once. `run` starts it all, with a store from `database`.
"""
