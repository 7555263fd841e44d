"""The planner's process: runs the schedulers, users' own among them. See planner.py for the other end."""

from __future__ import annotations

import traceback

import msgspec

from millrace.errors import MillraceError
from millrace.master.planner import Answer, read_frame, write_frame
from millrace.model.situation import Situation
from millrace.runtime.process import die_with_parent
from millrace.schedulers.parameters import parameters_of
from millrace.schedulers.registry import make_scheduler
from millrace.schedulers.rules import check_result, result_to_json


def serve(requests: int, answers: int) -> None:
    """The child's life: one answer for each request, until the master is gone."""
    die_with_parent()
    write_frame(answers, msgspec.msgpack.encode({"ready": True}))
    while (frame := read_frame(requests)) is not None:
        try:
            answer = answer_to(msgspec.msgpack.decode(frame))
        except Exception as error:  # a user's scheduler may raise anything: it is told, and the child lives on
            answer = {"error": describe(error)}
        write_frame(answers, msgspec.msgpack.encode(answer))


def describe(error: Exception) -> str:
    """In one line, with the place in the user's code for what is not one of Millrace's own messages."""
    if isinstance(error, MillraceError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    return f"it raised {type(error).__name__}: {error}" + (f", at {frames[-1].filename}:{frames[-1].lineno}" if frames else "")


def answer_to(request: Answer) -> Answer:
    """`check`: whether there is such a scheduler, and what its parameters are then. `schedule`: its answer."""
    scheduler = make_scheduler(request["scheduler"], request["parameters"])
    if "situation" not in request:
        values = msgspec.to_builtins(parameters_of(scheduler))
        return {"parameters": values, "period": float(getattr(type(scheduler), "PERIOD_SECONDS", 300.0))}
    given = Situation.from_json(request["situation"])
    result = scheduler.schedule(given.graphs, given.cluster, given.load, given.plan)
    return result_to_json(check_result(given, result))
