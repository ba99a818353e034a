"""What a wrapper adds to a call that succeeds at once: `with_retry` compared with stamina and tenacity, a breaker compared with purgatory."""

import json
import subprocess

from bench.environment import ROOT, Missing, interpreter
from bench.measure import Measurement
from bench.plan import Run

SUITE = "calls"
_ENVIRONMENTS = {
    "holdfast": None,
    "stamina": "calls",
    "tenacity": "calls",
    "holdfast breaker": None,
    "purgatory": "calls",
    "no wrapper": None,
}


def calls_suite(run: Run) -> None:
    """Runs each library in a separate process, in turn. The result is nanoseconds per call."""
    for turn in range(run.sizes.rounds):
        for library, environment in _ENVIRONMENTS.items():
            if any(one.suite == SUITE and one.subject == library for one in run.results.problems):
                continue
            try:
                python = interpreter(environment)
                command = [str(python), "-m", "bench.peers.calls", library, str(run.sizes.calls)]
                done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
            except Missing as error:
                run.results.blame(SUITE, library, "missing", str(error))
                continue
            except subprocess.CalledProcessError as error:
                run.results.blame(SUITE, library, "missing", error.stderr.splitlines()[-1])
                continue
            found = json.loads(done.stdout)
            if found["packages"]:
                run.results.facts.setdefault("subjects", {})[f"{library} (calls)"] = {"packages": found["packages"]}
            for colour in ("async", "plain"):
                figure = Measurement(SUITE, library, colour, found[colour], "ns", turn, count=run.sizes.calls)
                run.results.add(figure)
            run.say(f"{SUITE} round {turn + 1} {library}: {found['async']:.0f} ns async, {found['plain']:.0f} ns plain")
