"""The planner's process: runs the schedulers, users' own among them. See planner.py for the other end."""

from __future__ import annotations

import traceback
from typing import Any

import msgspec
import numpy as np

from millrace.errors import MillraceError
from millrace.master.scheduling.planner import Answer, read_frame, write_frame
from millrace.model.situation import Situation
from millrace.runtime.worker.process import die_with_parent
from millrace.schedulers.parameters import parameters_of
from millrace.schedulers.registry import make_scheduler, traits
from millrace.schedulers.rules import check_result, result_to_json

MESSAGE_LENGTH = 500


def serve(requests: int, answers: int) -> None:
    """The child's life: one answer for each request, until the master is gone."""
    die_with_parent()
    write_frame(answers, msgspec.msgpack.encode({"ready": True}))
    while (frame := read_frame(requests)) is not None:
        try:
            answer = msgspec.msgpack.encode(answer_to(msgspec.msgpack.decode(frame)), enc_hook=plain)
        except (Exception, SystemExit) as error:  # a user's scheduler may raise anything: it is told, and the child lives on
            answer = msgspec.msgpack.encode({"error": describe(error)})
        write_frame(answers, answer)


def plain(value: Any) -> Any:
    """NumPy's numbers as Python's: schedulers that reckon with arrays return them."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} ({value!r}) in its answer cannot be sent: use plain numbers and text")


def describe(error: BaseException) -> str:
    """In one line, with the place in the user's code for what is not one of Millrace's own messages."""
    if isinstance(error, MillraceError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    said = " ".join("".join(traceback.format_exception_only(error)).split())[:MESSAGE_LENGTH]
    return f"it raised {said}" + (f", at {frames[-1].filename}:{frames[-1].lineno}" if frames else "")


def answer_to(request: Answer) -> Answer:
    """`check`: whether there is such a scheduler, and what its parameters are then. `schedule`: its answer."""
    scheduler = make_scheduler(request["scheduler"], request["parameters"])
    if "situation" not in request:
        values = msgspec.to_builtins(parameters_of(scheduler))
        return {"parameters": values, **traits(scheduler)._asdict()}
    given = Situation.from_json(request["situation"])
    result = scheduler.schedule(given.graphs, given.cluster, given.load, given.plan)
    return result_to_json(check_result(given, result))
