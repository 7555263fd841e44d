"""Schedulers by name. A user's scheduler is named as `module:Class`; its fields are its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from millrace.errors import MillraceError, SchedulerFailed, UnknownName
from millrace.model.graph import resolve
from millrace.schedulers.base import Scheduler
from millrace.schedulers.parameters import with_parameters

OFF = "off"  # no scheduler: tasks stay where they were first placed, and move only when their worker is lost
PERIOD_SECONDS = 300.0  # T-Storm's
COOL_DOWN_SECONDS = 10.0
ESTIMATOR = "ewma"  # T-Storm's
PACKING = 0.9
SCHEDULERS = {
    "even": "millrace.schedulers.even:Even",
    "resource-aware": "millrace.schedulers.resource_aware:ResourceAware",
    "online": "millrace.schedulers.online:Online",
    "tstorm": "millrace.schedulers.tstorm:TStorm",
    "otd": "millrace.schedulers.otd:Otd",
    "slstream": "millrace.schedulers.slstream:SlStream",
    "multilevel": "millrace.schedulers.multilevel:Multilevel",
    "erstream": "millrace.schedulers.erstream:ErStream",
    "optimal": "millrace.schedulers.optimal:Optimal",
    "balance": "millrace.schedulers.balance:Balance",
}


class Traits(NamedTuple):
    """Optional constants of a scheduler's class: `PERIOD_SECONDS`, the interval between its runs; `WEIGHS_ITSELF`, True if it
    has its own threshold for moving tasks; `COOL_DOWN_SECONDS`, the least time between two plans; `ESTIMATOR`, the name of the
    estimator of loads that it is meant for. Optional, too, is an attribute `packing`, or else `capacity`: the share of a
    node or worker that it fills."""

    period: float
    weighs_itself: bool
    cool_down: float
    estimator: str
    packing: float


def traits(scheduler: Scheduler) -> Traits:
    cls = type(scheduler)
    return Traits(float(getattr(cls, "PERIOD_SECONDS", PERIOD_SECONDS)), bool(getattr(cls, "WEIGHS_ITSELF", False)),
                  float(getattr(cls, "COOL_DOWN_SECONDS", COOL_DOWN_SECONDS)), str(getattr(cls, "ESTIMATOR", ESTIMATOR)),
                  float(getattr(scheduler, "packing", getattr(scheduler, "capacity", PACKING))))


def scheduler_class(name: str) -> type[Any]:
    """The class of that name: built in, or a user's `module:Class`."""
    if name not in SCHEDULERS and ":" not in name:
        raise UnknownName(f"there is no scheduler named {name!r}; there are {', '.join(SCHEDULERS)}, and your own as "
                          "module:Class")
    cls = resolve(SCHEDULERS.get(name, name))
    if not isinstance(cls, type) or not callable(getattr(cls, "schedule", None)):
        raise SchedulerFailed(f"{name!r} is not a class with a method schedule(graphs, cluster, load, plan)")
    return cls


def make_scheduler(name: str, parameters: Mapping[str, Any] | None = None) -> Scheduler:
    """Makes a scheduler with these parameters, checked."""
    cls = scheduler_class(name)
    try:
        scheduler: Scheduler = with_parameters(cls, parameters or {}, f"scheduler {name!r}")
    except MillraceError:
        raise
    except Exception as error:  # raised by a user's __init__
        raise SchedulerFailed(f"scheduler {name!r} could not be made: {type(error).__name__}: {error}") from error
    return scheduler
