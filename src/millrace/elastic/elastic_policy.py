"""Settings of the elastic loop."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.schedulers.parameters import check_parameters, parameter


@dataclass(frozen=True)
class ElasticPolicy:
    """The settings, common to all models; `settle_windows` and `patience` count windows of `period`."""

    period: float = parameter(5.0, "Length in seconds of the windows by which the loop decides; shorter load windows are "
                                   "joined.", low=0.1, high=3600)
    cool_down: float = parameter(20.0, "Seconds after a change of parallelism before the next one.", low=0)
    settle_windows: int = parameter(2, "Windows in a row that must call for more tasks.", low=1, high=100)
    patience: int = parameter(6, "Windows in a row that must call for fewer or other tasks.", low=1, high=1000)
    steady: float = parameter(0.25, "Share by which the offered rate may change within these windows.", low=0.01, high=10)
    hysteresis: float = parameter(0.1, "Share of additional load with which the goal must be met, too, before tasks end.",
                                  low=0.0, high=2.0)
    min_gain: float = parameter(0.1, "Share by which the latency must fall if as many tasks are to be distributed otherwise.",
                                low=0.0, high=1.0)
    max_shrink: float = parameter(0.5, "Share of a component's tasks that may end at once.", low=0.01, high=1.0)
    max_growth: float = parameter(4.0, "Times its tasks that a component may get at once.", low=1.0, high=1000.0)
    catch_up: float = parameter(30.0, "Seconds in which a backlog at the sources should be worked off, as far as a quarter "
                                      "more capacity can.", low=1.0)
    retry_after: float = parameter(3600.0, "Seconds after which a decision that did not help may be taken again.", low=0)
    dry_run: bool = parameter(False, "Report decisions without carrying them out.")

    def __post_init__(self) -> None:
        check_parameters(self)
