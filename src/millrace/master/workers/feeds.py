"""Where the tasks of a DataFrame spout take batches in: each tells it as a metric of its own, and feeders ask the master."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.control.feeding import FEED, FeedAddress
from millrace.runtime.wire import messages as wire

if TYPE_CHECKING:
    from millrace.master.service import Master


def feeds_for(master: Master, asked: wire.AskFeeds) -> wire.Feeds:
    """Only of tasks that are where the plan says: an incarnation that has been replaced may still listen for a while."""
    topology, observed = master.state.topologies.get(asked.topology), master.observed.get(asked.topology)
    if topology is None or observed is None:
        return wire.Feeds("", [])
    found = []
    for task, place in sorted(topology.places.items()):
        seen = observed.tasks.get(task)
        if task.component == asked.component and seen is not None and seen.incarnation == place.incarnation:
            found += [FeedAddress(*seen.custom[FEED])] if FEED in seen.custom else []
    return wire.Feeds(topology.status, found)
