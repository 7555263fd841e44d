"""The results of topologies that have ended."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.master.load.observed import TopologyObserved

ENDED_KEPT = 20


@dataclass(frozen=True, slots=True)
class EndedTopology:
    """The result of a topology that has ended."""

    observed: TopologyObserved
    uncommitted: str = ""  # the reason why input was not committed; empty if all was
    failure: str = ""  # the unexpected error of the master that has ended it


class EndedTopologies(dict[str, EndedTopology]):
    """The topologies that ended recently, by name."""

    def fail(self, name: str, observed: TopologyObserved, failure: str) -> None:
        """Record why a topology is about to end."""
        self[name] = EndedTopology(observed, failure=failure)

    def end(self, name: str, observed: TopologyObserved, uncommitted: str) -> list[str]:
        """Record the end of a topology. Returns the names of those that are forgotten."""
        failure = self[name].failure if name in self else ""
        self[name] = EndedTopology(observed, uncommitted, failure)
        forgotten = list(self)[:-ENDED_KEPT]
        for oldest in forgotten:
            del self[oldest]
        return forgotten
