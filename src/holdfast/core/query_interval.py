"""When to repeat a query that may be expensive."""


def next_query(started: float, ended: float, *, factor: float, longest: float, shortest: float = 0.0) -> float:
    """The time to repeat a query at, in seconds: `factor` times its duration after its end, so that its load is bounded.

    At least `shortest` and at most `longest` after its end. The second limit is needed in any case: a query also takes long
    when the process is suspended or the network is silent, and one such query must not put the next off for minutes.
    """
    return ended + min(max(shortest, factor * (ended - started)), longest)
