"""Trial of the checkpoint store by Spark's executors: a small job in which each looks for the driver's mark."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import msgspec

from millrace.runtime.checkpoints.store import CheckpointStore, open_store
from millrace.runtime.checkpoints.trial import abandon_trial, begin_trial, end_trial, join_trial, raise_if_not_shared
from millrace.runtime.wire import messages as wire
from millrace.spark.cluster.identity import executor_id, read_to_end
from millrace.spark.cluster.placement import Executor, Placement

_answer = msgspec.msgpack.Decoder(tuple[str, str])


def check_store(placement: Placement, executors: Sequence[Executor], store: CheckpointStore, place: str) -> None:
    """Raise `StoreNotShared` if executors do not share the store with the driver."""
    token = uuid.uuid4().hex
    begin_trial(store, token)
    try:
        placed = placement.seeds([executor.location for executor in executors])
        joined = dict(map(_answer.decode, placement.collect(placement.python(placed, partial(join_here, place, token)))))
    except BaseException:
        abandon_trial(store, token)
        raise
    unseen = end_trial(store, token, [executor for executor, error in joined.items() if not error])
    joined |= dict.fromkeys(unseen, "the driver does not find its test file")
    hosts = {executor.id: executor.host for executor in executors}
    raise_if_not_shared(place, {f"executor {executor} on {hosts.get(executor, 'another host')}": error
                                for executor, error in joined.items() if error})


def join_here(place: str, token: str, index: int, records: Iterable[bytes]) -> Iterator[bytes]:
    """The body of a Spark task that takes part in the trial and reports its executor."""
    try:
        error = join_trial(open_store(place), token, executor_id())
    except Exception as failure:  # of any store, such as a path that is not a directory here
        error = f"{type(failure).__name__}: {failure}"
    yield wire.encode((executor_id(), error))
    read_to_end(records)
