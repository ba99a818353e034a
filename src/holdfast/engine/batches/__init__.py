"""Batch handlers: several deliveries of one consumer run in one call, and each has its own outcome.

::

    claimer     claims a batch when it is complete or old enough (scheduler decides when to check)
    executor    decodes the items, runs the handler once, settles each item
    runner      calls the handler and finds the outcome of each item
    context     what the handler sees of its batch
"""
