"""The spout that a streaming DataFrame of Spark feeds.

    class WordCount(Topology):
        lines = Spout.from_dataframe(spark.readStream.text("/incoming"), par=2)

The DataFrame stays in the driver: the engine reads it and sends the rows to the spout's tasks as Arrow batches, through a
`Feed`. This module does not import Spark: a DataFrame is any object with `columns` and `isStreaming`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from millrace.api.spout import ReliableSpout, ReplayableSpout
from millrace.api.topology import ComponentSpec, Topology
from millrace.config import DATAFRAME_CHECKPOINT
from millrace.errors import NotRunning, TopologyError

if TYPE_CHECKING:
    import pyarrow as pa

DataFrameSource = Any  # a DataFrame, or a function of the Spark session that returns one, or "module:function"


class Feed(Protocol):
    """The source of a DataFrame spout's batches. The engine sets it before `initialize`."""

    def take(self) -> tuple[Hashable, pa.RecordBatch] | None:
        """Returns the next batch and its key; None if there is none now. Does not wait."""
        ...

    def done(self, key: Hashable) -> None:
        """Reports that the batch, and everything derived from it, has been processed."""
        ...

    def refuse(self, key: Hashable, reason: str) -> None:
        """Reports that the batch can never be emitted."""
        ...

    def close(self) -> None: ...


class SplitFeed(Feed, Protocol):
    """The same for one split of the spout. What it has processed goes with it when another task reads it."""

    def record(self) -> Any:
        """Returns which batches of the micro-batch have been processed, so that none of them is processed again."""
        ...

    def resume(self, record: Any) -> None:
        """Begins with what a record says; None: without any. Other batches that were taken come again."""
        ...


class TaskFeed(Protocol):
    """The feed of one task of the spout, as the engine opens it."""

    def whole(self) -> Feed:
        """The feed if the spout has no splits. Closing it closes all."""
        ...

    def split(self, number: int) -> SplitFeed: ...

    def receive(self) -> Any:
        """Takes one batch to its split, and returns those of splits that other tasks read."""
        ...

    def close(self) -> None: ...


class _NoFeed:
    """Stands in for the feed outside an engine, with an error that explains the mistake."""

    def __getattr__(self, name: str) -> Any:
        raise NotRunning("a spout made by Spout.from_dataframe has no DataFrame to read here: submit its topology to an engine "
                         "on Spark, which reads the DataFrame for it")


class DataFrameSpout(ReliableSpout):
    """Emits the batches of its feed, each under the feed's key, and sends failed ones again. Declared by
    `Spout.from_dataframe`."""

    feed: Feed = _NoFeed()

    def next_tuple(self) -> None:
        taken = self.feed.take()
        if taken is None:
            return
        key, batch = taken
        try:
            self.emit_arrow(batch, tup_id=key)
        except Exception as error:
            self.feed.refuse(key, f"{type(error).__name__}: {error}")
            raise
        if not self.tracked:  # no ack will follow
            self.feed.done(key)

    def ack(self, tup_id: Any) -> None:
        super().ack(tup_id)
        self.feed.done(tup_id)

    def close(self) -> None:
        self.feed.close()


class SplitDataFrameSpout(ReplayableSpout):
    """Emits the batches of one split. A position is the number of batches that the split had before."""

    feed: SplitFeed = _NoFeed()

    def __init__(self) -> None:
        super().__init__()
        self._keys: dict[int, Hashable] = {}  # of the batches in flight, by position
        self._restored: Any = None

    def next_tuple(self) -> None:
        taken = self.feed.take()
        if taken is None:
            return
        key, batch = taken
        position = self._next_position
        try:
            self.emit_arrow(batch, tup_id=position)
        except Exception as error:
            self.feed.refuse(key, f"{type(error).__name__}: {error}")
            raise
        if self.tracked:
            self._keys[position] = key
        else:  # no ack will follow
            self.feed.done(key)

    def ack(self, tup_id: Any) -> None:
        super().ack(tup_id)
        key = self._keys.pop(tup_id, None)
        if key is not None:
            self.feed.done(key)

    def snapshot(self) -> Any:
        return self.feed.record()

    def restore(self, snapshot: Any) -> None:
        self._restored = snapshot

    def seek(self, position: int) -> None:
        self.unacked_tuples.clear()
        self.failed_tuples.clear()
        self._keys.clear()
        self._next_position = position
        self.feed.resume(self._restored)
        self._restored = None

    def close(self) -> None:
        self.feed.close()


def dataframe_spec(dataframe: DataFrameSource, name: str | None = None, par: Any = None, outputs: Sequence[str] | None = None,
               checkpoint: str | None = None, config: dict[str, Any] | None = None,
               splits: int | None = None) -> ComponentSpec:
    """Makes the spec for `Spout.from_dataframe`."""
    label = f"the DataFrame spout {name!r}" if name is not None else "a DataFrame spout"
    if isinstance(dataframe, str) or callable(dataframe):
        if outputs is None:
            raise TopologyError(f"{label} reads the DataFrame that {_name_of(dataframe)} returns when the topology is "
                                'submitted, so its columns are not known yet: name them, for example outputs=["line"]')
    elif _is_dataframe(dataframe):
        check_dataframe(label, dataframe, outputs)
        outputs = list(dataframe.columns) if outputs is None else outputs
    else:
        raise TypeError("Spout.from_dataframe takes a streaming DataFrame, a function of the Spark session that returns one, "
                        f'or its name as "module:function"; not {dataframe!r} ({type(dataframe).__name__})')
    if checkpoint is not None:
        config = {**(config or {}), DATAFRAME_CHECKPOINT.key: checkpoint}
    if splits is not None:
        config = {**(config or {}), "splits": splits}
    spout = SplitDataFrameSpout if (config or {}).get("splits") else DataFrameSpout
    return ComponentSpec(spout, name=name, par=par, config=config, outputs=outputs, dataframe=dataframe)


def dataframes_of(topology: type[Topology]) -> dict[str, DataFrameSource]:
    """The DataFrames of the topology's DataFrame spouts, by the spout's name."""
    return {str(spec.name): spec.dataframe for spec in topology.specs if spec.dataframe is not None}


def check_dataframe(label: str, dataframe: Any, outputs: Sequence[str] | None) -> None:
    """Raises `TopologyError` unless it is a streaming DataFrame with these columns in any order; None: any columns."""
    if not _is_dataframe(dataframe):
        raise TopologyError(f"{label} needs a streaming DataFrame, but got {dataframe!r} ({type(dataframe).__name__})")
    if not dataframe.isStreaming:
        raise TopologyError(f"{label} needs a streaming DataFrame, but its DataFrame ({', '.join(dataframe.columns)}) is not "
                            "streaming: make it with spark.readStream instead of spark.read")
    if outputs is not None and (sorted(outputs) != sorted(dataframe.columns)):
        raise TopologyError(f"{label} has the outputs {', '.join(outputs)}, and its DataFrame the columns "
                            f"{', '.join(dataframe.columns)}: they must be the same; select or rename columns of the DataFrame")


def _is_dataframe(dataframe: Any) -> bool:
    return hasattr(dataframe, "columns") and hasattr(dataframe, "isStreaming")


def _name_of(dataframe: str | Callable[..., Any]) -> str:
    return dataframe if isinstance(dataframe, str) else getattr(dataframe, "__qualname__", repr(dataframe))
