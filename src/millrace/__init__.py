"""Millrace: Storm-style stream topologies on Spark, managed while they run.

Subclass `Spout` and `Bolt`, put them together in a `Topology`, and run it with `millrace run module:Topology`.
"""

from millrace.api.bolt import BatchingBolt, Bolt, TicklessBatchingBolt
from millrace.api.component import Component
from millrace.api.grouping import Grouping
from millrace.api.keyed.declared import CounterState, ListState, State, Typed
from millrace.api.sink import TwoPhaseSink
from millrace.api.spout import ReliableSpout, ReplayableSpout, Spout
from millrace.api.topology import Stream, Topology
from millrace.api.tuple import Tuple
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
