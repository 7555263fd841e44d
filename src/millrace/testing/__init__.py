"""Tools for testing topologies: components by hand, a reference run, a whole cluster in one process. See docs/TESTING.md."""

from millrace.api.recorder import Emitted
from millrace.testing.components import drain, rows, start, take, tuples, values
from millrace.testing.local_cluster import LocalCluster
from millrace.testing.reference import Reference, run_reference
from millrace.testing.states import with_state

__all__ = [
    "Emitted",
    "LocalCluster",
    "Reference",
    "drain",
    "rows",
    "run_reference",
    "start",
    "take",
    "tuples",
    "values",
    "with_state",
]
