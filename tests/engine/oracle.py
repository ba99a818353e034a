"""The oracle of FAULTS: what holds after every run, for every fault during it."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import orjson

from tests.engine.programs import shop
from tests.engine.programs.place import Place

_COUNTED = ("failed", "lease_expired")


class Oracle:
    """Reads a place that has come to rest and says what was lost, doubled or left behind."""

    def __init__(self, place: Place) -> None:
        self._place = place
        rows = place.sql("select id, type, payload from {hf}message")
        self.numbers: dict[int, str] = {}
        self.messages: dict[str, str] = {}
        for id, type, payload in rows:
            body = payload if isinstance(payload, dict) else orjson.loads(payload)
            self.messages[str(id)] = type
            assert body["n"] not in self.numbers, f"number {body['n']} was published twice"
            self.numbers[body["n"]] = str(id)

    def everything(self) -> None:
        """All of it, for the shop."""
        self.nothing_accepted_is_absent_and_nothing_rolled_back_is_there()
        self.every_message_went_to_all_of_its_consumers_and_ended()
        self.an_effect_in_the_same_database_happened_once()
        self.an_outside_sink_saw_everything_under_a_stable_id()
        self.nothing_is_in_flight()
        self.run_records_match_the_attempts()

    def nothing_accepted_is_absent_and_nothing_rolled_back_is_there(self) -> None:
        """(a) A message exists if and only if the transaction it was published in committed."""
        business = {n for (n,) in self._place.sql("select n from business")}
        attempted, accepted, rolled_back = map(self._noted, ("attempted", "accepted", "rolled_back"))
        there = set(self.numbers)
        assert business | accepted <= there, f"lost: {sorted((business | accepted) - there)[:20]}"
        assert there <= business | attempted, f"from nowhere: {sorted(there - business - attempted)[:20]}"
        assert not there & (rolled_back - business), "rolled back, but still present"

    def every_message_went_to_all_of_its_consumers_and_ended(self) -> None:
        """(a) Every item is delivered, or failed because its own handler said so."""
        consumers: defaultdict[str, list[str]] = defaultdict(list)
        ended: Counter[tuple[str, str]] = Counter()
        failed: set[tuple[str, str]] = set()
        for message, consumer, status in self._place.sql("select message_id, consumer, status from {hf}delivery"):
            consumers[str(message)].append(consumer)
            ended[consumer, status] += 1
            if status == "failed":
                failed.add((str(message), consumer))
        for id, type in self.messages.items():
            wanted = ["book", "post"] if type == "order.placed" else ["note"]
            assert sorted(consumers.pop(id, [])) == wanted, f"message {id} went to other consumers than {wanted}"
        assert not consumers, "deliveries without a message"
        hopeless = {(id, "note") for n, id in self.numbers.items() if self._is_hopeless(n)}
        assert failed == hopeless, f"failed, and should not: {failed - hopeless}; or not failed: {hopeless - failed}"
        assert {status for _, status in ended} <= {"delivered", "failed"}, ended

    def an_effect_in_the_same_database_happened_once(self) -> None:
        """(b) An effect finished with `ctx.complete` is applied once, no more and no less."""
        times = Counter(n for (n,) in self._place.sql("select n from effect"))
        orders = {n for n in self.numbers if shop.type_of(n) == "order.placed"}
        assert not (doubled := {n: k for n, k in times.items() if k > 1}), f"applied twice: {doubled}"
        assert set(times) == orders, f"not applied: {orders - set(times)}; from nowhere: {set(times) - orders}"
        wrong = [n for n, id in self._place.sql("select n, message_id from effect") if self.numbers[n] != id]
        assert not wrong, f"applied under another id: {wrong}"

    def an_outside_sink_saw_everything_under_a_stable_id(self) -> None:
        """(c) An effect elsewhere happens at least once, always under the message's id."""
        seen = Counter(tuple(line.split()) for line in self._place.sink.read_text().splitlines())
        orders = {(str(n), id) for n, id in self.numbers.items() if shop.type_of(n) == "order.placed"}
        assert set(seen) == orders, f"never seen: {orders - set(seen)}; under another id: {set(seen) - orders}"

    def nothing_is_in_flight(self) -> None:
        """(e) Nothing is held by anybody once all has ended."""
        held = self._place.sql(
            "select id, locked_by from {hf}delivery where status = 'in_flight' or locked_by is not null"
        )
        assert not held, held

    def run_records_match_the_attempts(self) -> None:
        """(f) Each attempt that failed, or whose worker died, has one record; a success needs none."""
        runs: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
        fences: defaultdict[str, list[int]] = defaultdict(list)
        for id, attempt, outcome, fence in self._place.sql("select delivery_id, attempt, outcome, fence from {hf}run"):
            runs[str(id)].append((attempt, outcome))
            fences[str(id)].append(fence)
        rows = self._place.sql("select id, status, attempts, fence from {hf}delivery")
        for id, status, attempts, fence in rows:
            counted = sorted(attempt for attempt, outcome in runs[str(id)] if outcome in _COUNTED)
            expected = list(range(1, attempts + 1 if status == "failed" else attempts))
            assert counted == expected, (
                f"delivery {id} is {status} after {attempts} attempts, its runs are {runs[str(id)]}"
            )
            assert all(0 < recorded <= fence for recorded in fences[str(id)]), f"delivery {id}: a run from the future"
        unknown = set(runs) - {str(id) for id, *_ in rows}
        assert not unknown, f"runs of no delivery: {unknown}"

    def _is_hopeless(self, n: int) -> bool:
        return shop.type_of(n) == "note.written" and n % shop.HOPELESS == 0

    def _noted(self, name: str) -> set[int]:
        file: Path = self._place.directory / name
        lines: Iterable[str] = file.read_text().splitlines() if file.exists() else ()
        return {int(line) for line in lines}
