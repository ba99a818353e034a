"""Publishes, forks, and publishes from the parent and from every child at once, on the app that all of them inherited.

Usage: python -m tests.engine.programs.forking CHILDREN
"""

import os
import sys
import traceback

from holdfast import Holdfast


def main(children: int) -> int:
    hf = Holdfast(os.environ["HOLDFAST_DSN"])
    hf.sync.publish("visit", {"n": 0}, conn=None)
    pids = []
    for child in range(1, children + 1):
        pid = os.fork()
        if pid == 0:
            os._exit(_publish(hf, child))
        pids.append(pid)
    failed = _publish(hf, 0)
    return max(failed, *(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids))


def _publish(hf: Holdfast, who: int) -> int:
    try:
        for n in range(20):
            hf.sync.publish("visit", {"n": 100 * who + n}, conn=None, key=f"{who}:{n}")
    except Exception:  # noqa: BLE001
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
