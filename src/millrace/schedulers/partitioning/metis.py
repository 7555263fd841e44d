"""METIS, a multilevel graph partitioner, by way of pymetis."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import numpy as np
from scipy.sparse import coo_array, csr_array

from millrace.errors import SchedulerFailed
from millrace.schedulers.problem import Floats, Ints

# METIS wants whole numbers, and on some builds those of 32 bits, for sums too.
MOST_NEED = 1_000_000_000
MOST_TRAFFIC = 500_000_000
FEWEST_TASKS = 2  # for each part; METIS is of no use with fewer


def is_installed() -> bool:
    return find_spec("pymetis") is not None


def require_installed() -> None:
    if not is_installed():
        raise SchedulerFailed("scheduler 'multilevel' needs the package pymetis, which is not installed: it has no wheel for "
                              "this platform. Build it with `pip install pymetis`, which needs a C++ compiler, or use "
                              "`slstream`")


def traffic_graph(count: int, left: Ints, right: Ints, rate: Floats) -> csr_array:
    """(count, count): the traffic between vertices, in both directions. Edges between the same two are added up, and those
    from a vertex to itself left out."""
    between = left != right
    left, right, rate = left[between], right[between], rate[between]
    ends, others = np.concatenate([left, right]), np.concatenate([right, left])
    return coo_array((np.concatenate([rate, rate]), (ends, others)), shape=(count, count)).tocsr()


def parts(graph: csr_array, needs: Floats, targets: Floats, slack: float, seed: int) -> Ints | None:
    """The part of every vertex, with little traffic between parts. `targets`: the share of the needs that each part should
    have; one may have `slack` times its share more. None if METIS has nothing to work with: no traffic, or few vertices."""
    count, k = graph.shape[0], len(targets)
    if k < 2 or count < FEWEST_TASKS * k or not graph.nnz or not (targets > 0).all():
        return np.zeros(count, dtype=np.int64) if k == 1 else None
    import pymetis  # here, because few topologies need it

    kind = pymetis.zero_copy_dtype()
    shares = targets / targets.sum()
    equal = bool((targets == targets[0]).all())
    with _silence():
        partition = pymetis.part_graph(
            k, pymetis.CSRAdjacency(graph.indptr.astype(kind), graph.indices.astype(kind)),
            vweights=_whole(needs, MOST_NEED).astype(kind), eweights=_whole(graph.data, MOST_TRAFFIC).astype(kind),
            tpwgts=None if equal else (shares / shares.sum()).tolist(),
            options=pymetis.Options(seed=seed % MOST_NEED, ufactor=max(1, round(1000 * slack))))
    return np.array(partition.vertex_part, dtype=np.int64)


@contextmanager
def _silence() -> Iterator[None]:
    """Discards what is printed. METIS remarks on parts that become empty on standard output, which may belong to a command that
    prints JSON. C keeps it in a buffer, so that has to be emptied before and after."""
    c = ctypes.CDLL(None)
    c.fflush(None)
    output, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        c.fflush(None)
        os.dup2(output, 1)
        os.close(output)
        os.close(nowhere)


def _whole(values: Floats, most: int) -> Floats:
    """The values as whole numbers of at least 1 that add up to about `most`."""
    return np.maximum(np.round(values * (most / max(float(values.sum()), 1e-9))), 1.0)
