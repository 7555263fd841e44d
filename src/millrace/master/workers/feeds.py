"""Directory of feeds: the addresses at which the tasks of a DataFrame spout receive batches. Each task reports its own as a
metric, and feeders ask the master."""

from __future__ import annotations

from collections.abc import Mapping

from millrace.control.feeding import FEED, FeedAddress
from millrace.control.topology_state import TopologyState
from millrace.master.load.observed import TopologyObserved
from millrace.runtime.wire import messages as wire


def feeds_for(request: wire.AskFeeds, topologies: Mapping[str, TopologyState],
              observed: Mapping[str, TopologyObserved]) -> wire.Feeds:
    """Feeds of the tasks that the plan has: a replaced incarnation, which may still listen for a while, is left out."""
    topology, measured = topologies.get(request.topology), observed.get(request.topology)
    if topology is None or measured is None:
        return wire.Feeds("", [])
    feeds: dict[int, FeedAddress] = {}
    for task, place in sorted(topology.places.items()):
        seen = measured.tasks.get(task)
        if (task.component == request.component and seen is not None and seen.incarnation == place.incarnation
                and FEED in seen.custom):
            feeds[task.index] = FeedAddress(*seen.custom[FEED])
    numbers = {index: number for number, index in enumerate(feeds)}
    owners = topology.key_groups.get(request.component, ()) if request.component in topology.graph.splits else ()
    return wire.Feeds(topology.status, list(feeds.values()), [numbers.get(owner, -1) for owner in owners])
