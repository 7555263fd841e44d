"""Throughput Test: sends strings of 10 KB through an identity bolt to a counter. Measures the transport of bytes."""

from __future__ import annotations

import base64
import random
from typing import Any, ClassVar

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.connectors.generator import GeneratorSpout
from millrace.connectors.settings import setting

TABLE_STRINGS = 256
SIZE = 10_240


class RandomStrings(GeneratorSpout):
    """Emits random strings of one length, from a table of 256 drawn once from the seed.

    | config | meaning |
    | --- | --- |
    | `seed` | seed of the table (default 1) |
    | `size` | characters in a text (default 10,240) |

    and the settings of GeneratorSpout.
    """

    outputs: ClassVar[list[str]] = ["text"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        rng = random.Random(setting(self, storm_conf, "seed", int, 1))
        size = setting(self, storm_conf, "size", int, SIZE, least=1)
        self._table = [(base64.b64encode(rng.randbytes(size))[:size].decode(),) for _ in range(TABLE_STRINGS)]

    def generate(self, position: int) -> tuple[Any, ...]:
        return self._table[(position * self.parallelism + self.task_index) % TABLE_STRINGS]


class Identity(Bolt):
    """Emits its input unchanged."""

    outputs: ClassVar[list[str]] = ["text"]

    def process(self, tup: Tuple) -> None:
        self.emit(tup.values)


class CountTuples(Bolt):
    """Counts its tuples and their characters; emits nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.characters = 0

    def snapshot(self) -> Any:
        return self.count, self.characters

    def restore(self, snapshot: Any) -> None:
        self.count, self.characters = snapshot

    def process(self, tup: Tuple) -> None:
        self.count += 1
        self.characters += len(tup.values[0])


def throughput_test(spouts: int, identities: int, counters: int) -> type[Topology]:
    """Makes the topology with these numbers of tasks."""

    class ThroughputTest(Topology):
        strings = RandomStrings.spec(par=spouts)
        identity = Identity.spec(inputs={strings: Grouping.SHUFFLE}, par=identities)
        counter = CountTuples.spec(inputs={identity: Grouping.SHUFFLE}, par=counters)

    return ThroughputTest


class ThroughputTest(Topology):
    """The version in the T-Storm paper: 5 + 15 + 15 tasks."""

    strings = RandomStrings.spec(par=5)
    identity = Identity.spec(inputs={strings: Grouping.SHUFFLE}, par=15)
    counter = CountTuples.spec(inputs={identity: Grouping.SHUFFLE}, par=15)


class SmallThroughputTest(Topology):
    """A version for few cores: 1 + 2 + 2 tasks."""

    strings = RandomStrings.spec(par=1)
    identity = Identity.spec(inputs={strings: Grouping.SHUFFLE}, par=2)
    counter = CountTuples.spec(inputs={identity: Grouping.SHUFFLE}, par=2)
