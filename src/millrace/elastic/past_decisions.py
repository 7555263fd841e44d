"""The decisions of an elastic loop, and what it has learnt from them: what did not help is not done again under a similar load
for some time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count

from millrace.elastic.elastic_decision import GROWTH, REARRANGE, SCALES, SHRINK, ElasticDecision
from millrace.elastic.network import Network

ELASTIC_DECISIONS_KEPT = 200
SIMILAR = 0.25  # share by which two loads may differ and count as alike
ONLY_A_LITTLE = 0.1  # the same, for tasks that cannot keep up


class PastDecisions:
    """Those of one loop. `numbers`: of its decisions, shared with other loops. `retry_after`: seconds until what did not help
    may be tried again. Times are unix times."""

    def __init__(self, numbers: Iterator[int] | None, retry_after: float) -> None:
        self.kept: deque[ElasticDecision] = deque(maxlen=ELASTIC_DECISIONS_KEPT)
        self._numbers = numbers if numbers is not None else count(1)
        self._retry_after = retry_after
        self._chosen_after = 0  # number of the last decision before the model was chosen
        # numbers of tasks, with the offered rate and the time
        self._too_few: deque[tuple[Mapping[str, int], float, float]] = deque(maxlen=ELASTIC_DECISIONS_KEPT)

    def remember(self, past: Iterable[ElasticDecision]) -> None:
        """Take over earlier decisions, oldest first. None of them keeps the loop from the same decision."""
        self.kept.extend(past)
        self._chosen_after = max((decision.number for decision in self.kept), default=0)

    def add(self, decision: ElasticDecision) -> ElasticDecision:
        decision = replace(decision, number=next(self._numbers))
        self.kept.append(decision)
        return decision

    def put(self, decision: ElasticDecision) -> ElasticDecision:
        """Replace the decision that has this number."""
        for position, known in enumerate(self.kept):
            if known.number == decision.number:
                self.kept[position] = decision
        return decision

    def of_number(self, number: int | None) -> ElasticDecision | None:
        return next((decision for decision in self.kept if decision.number == number), None)

    def same(self, at: float, outcome: str, par: Mapping[str, int], before: Mapping[str, int]) -> ElasticDecision | None:
        """A decision with this outcome, for the same change, that is not too old to count."""
        return next((decision for decision in self._since_chosen(at) if decision.outcome == outcome
                     and (dict(decision.par), dict(decision.before)) == (dict(par), dict(before))), None)

    # -- lessons -------------------------------------------------------------------------------------------------------

    def too_few(self, par: Mapping[str, int], rate: float, at: float) -> None:
        """These tasks missed the goal at this rate by what was measured, though the model found it met."""
        self._too_few.append((par, rate, at))

    def missed_at(self, at: float, par: Mapping[str, int], rate: float) -> float | None:
        """The offered rate, at most a little higher than this, at which at least as many tasks missed the goal by what was
        measured."""
        return next((missed for few, missed, then in self._too_few if missed <= (1 + SIMILAR) * rate
                     and at - then < self._retry_after
                     and all(tasks <= few.get(name, 0) for name, tasks in par.items())), None)

    def futile(self, at: float, direction: str, par: Mapping[str, int], network: Network,
               overloaded: bool) -> ElasticDecision | None:
        """An earlier decision like this one that did not help, under a similar load."""
        before = network.present
        more = ONLY_A_LITTLE if direction == GROWTH and overloaded else SIMILAR  # a backlog grows: rather try again
        for decision in self._since_chosen(at):
            if decision.helped is not False or decision.direction != direction:
                continue
            if not _similar(decision.offered_rate, network.external_rate, more):
                continue
            changes = {name: tasks for name, tasks in par.items() if tasks != before.get(name)}
            if direction == GROWTH and changes.keys() <= decision.changes.keys():
                return decision  # the bottleneck is elsewhere
            if direction == SHRINK and all(par.get(name, 0) <= tasks for name, tasks in decision.changes.items()):
                return decision
            if direction == REARRANGE and dict(par) == dict(decision.par):
                return decision
        return None

    def undone(self, new: ElasticDecision, hysteresis: float) -> ElasticDecision | None:
        """The decision for fewer tasks that a new one for more undoes, under no more load than that allowed for. A load that
        comes in bursts would otherwise make tasks come and go for ever."""
        if new.direction != GROWTH:
            return None
        for decision in self._since_chosen(new.at):
            if decision.number == new.number or decision.outcome != SCALES or decision.helped is False:
                continue
            ended = {name for name, tasks in decision.changes.items() if tasks < decision.before.get(name, 0)}
            if ended.isdisjoint(name for name, tasks in new.changes.items() if tasks > new.before.get(name, 0)):
                continue
            allowed = decision.direction == SHRINK and new.offered_rate <= (1 + hysteresis) * decision.offered_rate
            return decision if allowed else None
        return None

    def _since_chosen(self, at: float) -> Iterator[ElasticDecision]:
        """Those of the present model that are not too old to count, the newest first."""
        return (decision for decision in reversed(self.kept)
                if decision.number > self._chosen_after and at - decision.at < self._retry_after)


def _similar(one: float, other: float, by: float = SIMILAR) -> bool:
    """True if these are rates of a similar load: they differ at most by this share."""
    low, high = sorted((one, other))
    return high <= (1 + by) * low
