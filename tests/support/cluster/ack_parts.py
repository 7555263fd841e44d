"""Components of the cluster tests that ack, fail and anchor by themselves."""

from __future__ import annotations

from typing import Any

from millrace.api.bolt import Bolt
from millrace.api.tuple import Tuple
from support.cluster.plain_parts import Counting
from support.cluster.records import SEEN
from support.cluster.refusing_parts import Refusal, refuse


class ByHand(Bolt):
    """Acks its pending tuples at each tick, by tuple or, with the setting `by_id`, by id. Fails the poison."""

    auto_ack = False
    outputs = ["n"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.waiting: list[Tuple] = []

    def process(self, tup: Tuple) -> None:
        self.waiting.append(tup)

    def process_tick(self, tup: Tuple) -> None:
        waiting, self.waiting = self.waiting, []
        for old in waiting:
            which = old.id if self.storm_conf.get("by_id") else old
            try:
                refuse(self, old.values.n)
            except Refusal:
                self.fail(which)
            else:
                self.emit([old.values.n], anchors=[which])
                self.ack(which)


class ByTheHundred(Bolt):
    """Acks a hundred tuples at a time, like a bolt that writes to a database."""

    auto_ack = False

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.waiting: list[Tuple] = []

    def process(self, tup: Tuple) -> None:
        self.waiting.append(tup)
        if len(self.waiting) == self.storm_conf["many"]:
            waiting, self.waiting = self.waiting, []
            for old in waiting:
                SEEN[self.component_name].append(old.values.n)
                self.ack(old)


class Anchored(Bolt):
    """Emits with the anchors that the setting `anchors` asks for."""

    outputs = ["n"]

    def process(self, tup: Tuple) -> None:
        how = self.storm_conf["anchors"]
        if how == "default":
            self.emit([tup.values.n])
        else:
            self.emit([tup.values.n], anchors={"tuple": [tup], "id": [tup.id], "none": []}[how])


class Unanchored(Bolt):
    auto_anchor = False
    outputs = ["n"]

    def process(self, tup: Tuple) -> None:
        self.emit([tup.values.n])


class AcksTwice(Bolt):
    """Acks tuples that the engine acks too."""

    def process(self, tup: Tuple) -> None:
        SEEN[self.component_name].append(tup.values.n)
        self.ack(tup)
        self.ack(tup.id)


class FailsItself(Bolt):
    """Fails the poison by a call of fail and not by an exception."""

    def process(self, tup: Tuple) -> None:
        try:
            refuse(self, tup.values.n)
        except Refusal:
            self.fail(tup)
        else:
            SEEN[self.component_name].append(tup.values.n)


class Pairs(Bolt):
    """Emits the sum of each two tuples, anchored to both."""

    auto_ack = False
    outputs = ["n"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.first: Tuple | None = None

    def process(self, tup: Tuple) -> None:
        if self.first is None:
            self.first = tup
            return
        first, self.first = self.first, None
        self.emit([first.values.n + tup.values.n], anchors=[first, tup])
        self.ack(first)
        self.ack(tup)


class ListIds(Counting):
    """Uses lists as ids, as a JSON source may."""

    def next_tuple(self) -> None:
        if self.next < self.limit:
            self.next += 1
            self.emit([self.next - 1], tup_id=["id", self.next - 1])

    def fail(self, tup_id: Any) -> None:
        super().fail(tup_id)
        self.emit([tup_id[1]], tup_id=tup_id)
