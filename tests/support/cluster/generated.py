"""Random topologies: unions, diamonds, every grouping and kind of bolt. Their output and state are computed from the shape
alone, row by row, without any part of the engine."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Any

from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from support.cluster import generated_parts as parts
from support.cluster.generated_parts import CHOSEN, Received

BATCH = 7  # rows of an Arrow batch
MOST_COPIES = 12  # of a number, over all components
SPOUTS = [parts.Source, parts.Source, parts.SourceBlocking, parts.SourceArrow]
BOLTS = [parts.ByRow, parts.ByRowBlocking, parts.ByRows, parts.ByArrow, parts.ByArrowBlocking, parts.Batching,
         parts.BatchingByTimer, parts.AckingByHand, parts.Holding, parts.Remembering]
KEYED = [parts.KeyedByRow, parts.KeyedBlocking, parts.KeyedByRows, parts.KeyedByArrow, parts.KeyedRemembering,
         parts.KeyedBatching]
SINKS = [parts.Collecting, parts.CollectingBlocking]
GROUPINGS = {
    "shuffle": Grouping.SHUFFLE, "local": Grouping.LOCAL_OR_SHUFFLE, "none": Grouping.NONE, "all": Grouping.ALL,
    "global": Grouping.GLOBAL, "direct": Grouping.DIRECT, "key": Grouping.fields("key"),
    "key and number": Grouping.fields("key", "number"), "by number": Grouping.custom(parts.by_number),
    "neighbours": Grouping.custom(parts.to_neighbours),
}
BY_FIELDS = ("key", "key and number")
NUMBERED = ("all", "global", "direct", "by number", "neighbours")  # the number, and not chance, chooses the tasks


@dataclass(frozen=True)
class Part:
    """One component. `inputs`: sources with their groupings. `splits`: of a spout, or 0."""

    name: str
    kind: Any
    par: int
    inputs: tuple[tuple[str, str], ...] = ()
    splits: int = 0

    @property
    def keyed(self) -> bool:
        """True if a key has one task at any time, which emits its rows in the order in which they came."""
        return self.kind is not parts.Holding and bool(self.inputs) and all(how == "key" for _, how in self.inputs)


@dataclass(frozen=True)
class Shape:
    """A generated topology; every spout emits the numbers below `limit`. `chunk`: tuples in a chunk; `timeout`: seconds until
    a tuple that is not acked is replayed."""

    parts: tuple[Part, ...]
    guarantee: str
    limit: int
    chunk: int
    timeout: float = 30.0

    def __getitem__(self, name: str) -> Part:
        return next(part for part in self.parts if part.name == name)

    def readers(self, name: str) -> Iterator[tuple[Part, str]]:
        for part in self.parts:
            yield from ((part, grouping) for source, grouping in part.inputs if source == name)

    @property
    def spouts(self) -> list[Part]:
        return [part for part in self.parts if not part.inputs]

    @property
    def sinks(self) -> list[Part]:
        return [part for part in self.parts if part.kind in SINKS]

    @property
    def tasks(self) -> int:
        return sum(part.par for part in self.parts)

    def topology(self) -> type[Topology]:
        specs: dict[str, Any] = {}
        for part in self.parts:
            if not part.inputs:
                specs[part.name] = part.kind.spec(par=part.par, config={"splits": part.splits})
                continue
            config: dict[str, Any] = {
                "numbered": [source for source, grouping in part.inputs if grouping in NUMBERED],
                "direct": [reader.name for reader, grouping in self.readers(part.name) if grouping == "direct"]}
            inputs = {specs[source][CHOSEN] if grouping == "direct" else specs[source]: GROUPINGS[grouping]
                      for source, grouping in part.inputs}
            specs[part.name] = part.kind.spec(inputs=inputs, par=part.par, config=config)
        settings = {"topology.guarantee": self.guarantee, "topology.checkpoint.interval.secs": 0.15,
                    "topology.checkpoint.timeout.secs": 3.0, "topology.message.timeout.secs": self.timeout,
                    "topology.channel.window": 16,
                    "topology.chunk.tuples": self.chunk, "topology.tick.tuple.freq.secs": 0.02, "limit": self.limit,
                    "rate": 2000.0, "batch": BATCH}
        return type("Generated", (Topology,), {"__module__": __name__, "config": settings, **specs})

    def __str__(self) -> str:
        return f"{self.guarantee}: " + "; ".join(
            f"{part.name}={part.kind.__name__}*{part.par}({', '.join(f'{source} by {how}' for source, how in part.inputs)})"
            + (f" in {part.splits} splits" if part.splits else "")
            for part in self.parts)


def generate(random: Random, guarantee: str, limit: int, splits: bool = False) -> Shape:
    """`splits`: the spouts have some."""
    while True:
        made = tuple(replace(part, splits=random.choice([3, 8, 17])) if splits and not part.inputs else part
                     for part in _parts(random))
        shape = Shape(made, guarantee, limit, random.choice([2, 5, 20]))
        if sum(len(copies) for copies in rows_at(shape, 0).values()) <= MOST_COPIES:
            return shape


def _parts(random: Random) -> Iterator[Part]:
    made = [Part(f"spout{index}", random.choice(SPOUTS), random.randint(1, 3)) for index in range(random.choice([1, 1, 2]))]
    for index in range(random.randint(1, 4)):
        kind = random.choice(KEYED if random.random() < 0.4 else BOLTS)
        sources = random.sample(made, min(len(made), random.choice([1, 1, 2, 3])))
        made.append(Part(f"bolt{index}", kind, random.randint(1, 3), tuple(
            (source.name, _grouping(random, source, kind)) for source in sources)))
    read = {source for part in made for source, _ in part.inputs}
    ends = [part for part in made if part.name not in read]
    sink = random.choice(SINKS)
    made.append(Part("sink", sink, random.randint(1, 3), tuple(
        (end.name, _grouping(random, end, sink)) for end in ends)))
    yield from made


def _grouping(random: Random, source: Part, kind: Any) -> str:
    if kind in KEYED:
        return "key"
    return random.choice([name for name in GROUPINGS if name != "direct" or source.inputs])


# -- the truth ---------------------------------------------------------------------------------------------------------------


def rows_at(shape: Shape, number: int) -> dict[str, list[tuple[str, int, str]]]:
    """By component that reads: key, number and path of every row that it gets because of this number."""
    found: dict[str, list[tuple[str, int, str]]] = defaultdict(list)
    key = parts.key_of(number)

    def send(source: Part, path: str) -> None:
        for reader, grouping in shape.readers(source.name):
            for index in _tasks(grouping, number, reader.par):
                found[reader.name].append((key, number, path))
                if reader.kind not in SINKS:
                    send(reader, f"{path}>{reader.name}" + (f".{index}" if grouping in NUMBERED else ""))

    for spout in shape.spouts:
        send(spout, spout.name)
    return found


def _tasks(grouping: str, number: int, par: int) -> list[int]:
    """The tasks that a number goes to; any one task if chance or the owners of key groups decide."""
    if grouping == "all":
        return list(range(par))
    if grouping in ("direct", "by number"):
        return [number % par]
    return sorted({number % par, (number + 1) % par}) if grouping == "neighbours" else [0]


def truth(shape: Shape) -> dict[str, Counter[tuple[str, int, str]]]:
    """By component that reads: how often it gets each row."""
    total: dict[str, Counter[tuple[str, int, str]]] = {part.name: Counter() for part in shape.parts if part.inputs}
    for number in range(shape.limit):
        for name, rows in rows_at(shape, number).items():
            total[name].update(rows)
    return total


def rows_of(received: Iterable[Received], component: str) -> Counter[tuple[str, int, str]]:
    return Counter((each.row[0], each.row[1], each.row[2]) for each in received if each.component == component)


# -- order -------------------------------------------------------------------------------------------------------------------


def disorder(shape: Shape, received: Iterable[Received], regrouped: bool, across: bool = True) -> list[str]:
    """The places where rows arrived in another order than they were emitted in. `regrouped`: key groups have changed owners, so
    that only the order of a key counts where rows are grouped by keys. `across`: the rows of a key are in order even if they
    went to several receivers."""
    groupings = {(source, part.name): grouping for part in shape.parts for source, grouping in part.inputs}
    lines: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for component, index, (key, number, _, sender, stamp) in received:
        source = sender.partition("[")[0]
        grouping = groupings[source, component]
        unit = BATCH if shape[source].kind is parts.SourceArrow else 1  # an Arrow batch has one position
        by = (key, number) if grouping == "key and number" else key
        lines["one key, sender and receiver", component, index, sender, by].append(stamp)
        if across and grouping in BY_FIELDS:
            lines["one key and sender", component, sender, by].append(stamp)
        if grouping not in BY_FIELDS or not regrouped:
            lines["sender and receiver", component, index, sender].append(stamp)
        if shape[source].splits and grouping in BY_FIELDS and across:
            lines["one key and split", component, source, number // unit % shape[source].splits, by].append(number)
        if shape[source].keyed:
            lines["one key and receiver of keyed senders", component, index, source, by].append(stamp)
    return [f"{line}: {before} before {after}" for line, stamps in lines.items() for before, after in pairwise(stamps)
            if after < before]
