"""Messages between feeders and the feeds of DataFrame spouts: one msgpack frame, and the Arrow batch in a second one."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from millrace.control.feeding import Key
from millrace.errors import WireError
from millrace.runtime.wire.messages import UNREADABLE, Natural

Number = Annotated[int, msgspec.Meta(ge=0)]


class Push(msgspec.Struct, array_like=True, tag=1, tag_field="type"):
    """Sends a batch; its rows are in the second frame. Answered by `Done`, `Refused` or `Returned` once that is known.
    `split`: that of the spout, if it has splits."""

    query: Annotated[str, msgspec.Meta(max_length=256)]
    batch: Number
    partition: Natural
    sequence: Natural
    digest: Number
    split: Natural = 0

    @property
    def key(self) -> Key:
        return Key(self.query, self.batch, self.partition, self.sequence, self.digest)


class Done(msgspec.Struct, array_like=True, tag=2, tag_field="type"):
    """The topology has fully processed the batch."""

    sequence: Natural


class Refused(msgspec.Struct, array_like=True, tag=3, tag_field="type"):
    """The batch cannot be emitted; resending it is pointless."""

    sequence: Natural
    reason: str


class Returned(msgspec.Struct, array_like=True, tag=4, tag_field="type"):
    """The task will not process the batch, because it does not read its split, or begins anew: ask the master where it belongs
    now, and send it again."""

    sequence: Natural


FeedAnswer = Done | Refused | Returned
_push_decoder = msgspec.msgpack.Decoder(Push)
_answer_decoder = msgspec.msgpack.Decoder(FeedAnswer)


def read_push(frames: list[Any]) -> tuple[Push, Any]:
    """Decode a push; its body is left encoded. `WireError` if it is anything else."""
    if len(frames) != 2:
        raise WireError(f"a message of {len(frames)} frames is not a batch for a DataFrame spout, which has 2")
    try:
        return _push_decoder.decode(frames[0]), frames[1]
    except UNREADABLE as error:
        raise WireError(f"a frame of {len(frames[0])} bytes is not the header of a batch: {error}") from None


def read_feed_answer(frame: Any) -> FeedAnswer:
    try:
        return _answer_decoder.decode(frame)
    except UNREADABLE as error:
        raise WireError(f"a frame of {len(frame)} bytes is not an answer of a DataFrame spout: {error}") from None
