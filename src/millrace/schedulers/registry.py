"""Schedulers by name. A user's own is named as `module:Class`, and its fields are its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from millrace.errors import MillraceError, SchedulerFailed, UnknownName
from millrace.model.graph import resolve
from millrace.schedulers.base import Scheduler
from millrace.schedulers.parameters import with_parameters

PERIOD_SECONDS = 300.0  # T-Storm's
SCHEDULERS = {
    "even": "millrace.schedulers.even:Even",
    "resource-aware": "millrace.schedulers.resource_aware:ResourceAware",
    "online": "millrace.schedulers.online:Online",
    "tstorm": "millrace.schedulers.tstorm:TStorm",
    "otd": "millrace.schedulers.otd:Otd",
    "slstream": "millrace.schedulers.slstream:SlStream",
    "erstream": "millrace.schedulers.erstream:ErStream",
    "optimal": "millrace.schedulers.optimal:Optimal",
    "balance": "millrace.schedulers.balance:Balance",
}


class Traits(NamedTuple):
    """What a scheduler's class says of it, if it says anything: `PERIOD_SECONDS`, how often it should be asked, and
    `WEIGHS_ITSELF`, that it moves tasks only when that is worth it by a threshold of its own."""

    period: float
    weighs_itself: bool


def traits(scheduler: Scheduler) -> Traits:
    cls = type(scheduler)
    return Traits(float(getattr(cls, "PERIOD_SECONDS", PERIOD_SECONDS)), bool(getattr(cls, "WEIGHS_ITSELF", False)))


def scheduler_class(name: str) -> type[Any]:
    """The class of that name: one of ours, or a user's `module:Class`."""
    if name not in SCHEDULERS and ":" not in name:
        raise UnknownName(f"there is no scheduler named {name!r}; there are {', '.join(SCHEDULERS)}, and your own as "
                          "module:Class")
    found = resolve(SCHEDULERS.get(name, name))
    if not isinstance(found, type) or not callable(getattr(found, "schedule", None)):
        raise SchedulerFailed(f"{name!r} is not a class with a method schedule(graphs, cluster, load, plan)")
    return found


def make_scheduler(name: str, parameters: Mapping[str, Any] | None = None) -> Scheduler:
    """A scheduler with these parameters, checked."""
    cls = scheduler_class(name)
    try:
        made: Scheduler = with_parameters(cls, parameters or {}, f"scheduler {name!r}")
    except MillraceError:
        raise
    except Exception as error:  # a user's own __init__
        raise SchedulerFailed(f"scheduler {name!r} could not be made: {type(error).__name__}: {error}") from error
    return made
