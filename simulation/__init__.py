"""Deterministic simulation: the real engine and SQL in virtual time, with faults that a seed selects.

`python -m simulation --seeds 1000` runs seeds and checks each history; `--seed 42` runs one seed and prints its trace;
`--planted` applies known bugs and reports which check finds each one.

- `clock`, `loop`, `process`, `world`: virtual time, one event loop per thread of a simulated process, and the scheduler.
- `database`, `store`: one SQLite database, its recorded changes, and a store with simulated latency and faults.
- `environment`: replaces clocks, random sources and threads of the running interpreter during a run.
- `application`, `actors`: the workload.
- `history`, `checks`: what happened, and the checker. They import nothing from Holdfast.
- `planted`: known bugs. `minimiser`: the fewest faults that still make a seed fail.
"""
