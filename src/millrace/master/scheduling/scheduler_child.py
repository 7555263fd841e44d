"""The process that runs schedulers, users' own included. scheduler_process.py is the master's end."""

from __future__ import annotations

import traceback
from typing import Any

import msgspec
import numpy as np

from millrace.errors import MillraceError
from millrace.master.scheduling.scheduler_process import SchedulerAnswer, read_message, write_message
from millrace.model.situation import Situation
from millrace.runtime.parent import die_with_parent
from millrace.schedulers.parameters import parameters_of
from millrace.schedulers.registry import make_scheduler, traits
from millrace.schedulers.rules import check_result, result_to_json

MESSAGE_LENGTH = 500


def serve(requests: int, answers: int) -> None:
    """Answer requests until the master is gone."""
    die_with_parent()
    write_message(answers, msgspec.msgpack.encode({"ready": True}))
    while (body := read_message(requests)) is not None:
        try:
            answer = msgspec.msgpack.encode(answer_to(msgspec.msgpack.decode(body)), enc_hook=plain)
        except (Exception, SystemExit) as error:  # a user's scheduler may raise anything: report it and live on
            answer = msgspec.msgpack.encode({"error": describe(error)})
        write_message(answers, answer)


def plain(value: Any) -> Any:
    """NumPy's numbers as Python's: schedulers that compute with arrays return them."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} ({value!r}) in its answer cannot be sent: use plain numbers and strings")


def describe(error: BaseException) -> str:
    """The error in one line; if it is not one of Millrace's own, with the place in the user's code."""
    if isinstance(error, MillraceError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    message = " ".join("".join(traceback.format_exception_only(error)).split())[:MESSAGE_LENGTH]
    return f"it raised {message}" + (f", at {frames[-1].filename}:{frames[-1].lineno}" if frames else "")


def answer_to(request: SchedulerAnswer) -> SchedulerAnswer:
    """Without a situation: construct the scheduler and return its parameters. With one: the scheduler's answer."""
    scheduler = make_scheduler(request["scheduler"], request["parameters"])
    if "situation" not in request:
        values = msgspec.to_builtins(parameters_of(scheduler))
        return {"parameters": values, **traits(scheduler)._asdict()}
    situation = Situation.from_json(request["situation"])
    result = scheduler.schedule(situation.graphs, situation.cluster, situation.load, situation.plan)
    return result_to_json(check_result(situation, result))
