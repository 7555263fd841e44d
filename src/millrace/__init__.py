"""Millrace: Storm-style stream topologies on Spark, managed while they run.

Subclass `Spout` and `Bolt`, put them together in a `Topology`, and run it with `millrace run module:Topology`.
"""

from millrace.api.component import (
    BatchingBolt,
    Bolt,
    Component,
    ReliableSpout,
    ReplayableSpout,
    Spout,
    TicklessBatchingBolt,
    Tuple,
)
from millrace.api.grouping import Grouping
from millrace.api.sink import TwoPhaseSink
from millrace.api.state import CounterState, ListState, State, Typed
from millrace.api.topology import Stream, Topology
from millrace.errors import MillraceError

__version__ = "0.1.0"

__all__ = [
    "BatchingBolt",
    "Bolt",
    "Component",
    "CounterState",
    "Grouping",
    "ListState",
    "MillraceError",
    "ReliableSpout",
    "ReplayableSpout",
    "Spout",
    "State",
    "Stream",
    "TicklessBatchingBolt",
    "Topology",
    "Tuple",
    "TwoPhaseSink",
    "Typed",
]
