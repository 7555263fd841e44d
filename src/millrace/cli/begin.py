"""Checks what a command is to run and begins to start Spark, before the command imports the engine.

The engine's imports take as long as Java's start, and both go on at the same time. So this module itself imports little.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import Any

from millrace.api.topology import Topology
from millrace.config import MICROBATCH, RESIDENT, check_engine_settings, check_topology_config
from millrace.control.submission import Resume, check_settings
from millrace.errors import MillraceError, TopologyError
from millrace.model.graph import graph_of, resolve
from millrace.schedulers.registry import OFF, make_scheduler
from millrace.spark.session import start_up
from millrace.spark.session.early import begin
from millrace.spark.session.session import application, default_name

DEFAULT_SLOTS = {RESIDENT: 2, MICROBATCH: 1}


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of `millrace run`."""

    topology: str
    master: str
    slots: int | None
    name: str | None
    par: dict[str, int]
    config: dict[str, Any] = field(repr=False)  # URLs in it may have passwords, as in the other settings
    seconds: float
    cluster: str | None
    bind: str | None
    port: int
    one_worker_per_node: bool
    spark: dict[str, str] = field(repr=False)
    settings: dict[str, Any] = field(repr=False)
    scheduler: str | None
    scheduler_parameters: dict[str, Any]
    resume: Resume
    engine: str = RESIDENT
    require_encryption: bool = False


def load_topology(name: str) -> type[Topology]:
    """Import the class named by module:Topology; the current directory is searched too."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    topology = resolve(name)
    if not isinstance(topology, type) or not issubclass(topology, Topology):
        raise TopologyError(f"{name!r} is {type(topology).__name__}, not a Topology: name a subclass of Topology")
    return topology


def check_engine(options: RunOptions) -> None:
    """Raise `MillraceError` for an unknown engine or an option that the engine does not support."""
    if options.engine not in DEFAULT_SLOTS:
        raise MillraceError(f"--engine {options.engine}: there is no such engine; choose one of {', '.join(DEFAULT_SLOTS)}")
    if options.engine == MICROBATCH:
        resident_only = {"--bind": options.bind is not None, "--port": options.port != 0,
                         "--one-worker-per-node": options.one_worker_per_node}
        wrong = [option for option, was_given in resident_only.items() if was_given]
        if wrong:
            raise MillraceError(f"{', '.join(wrong)}: not available with --engine {MICROBATCH}, whose tasks run in Spark's "
                                f"executors and open no connections. Leave it out, or use --engine {RESIDENT}")


def begin_run(options: RunOptions) -> type[Topology]:
    """Check the options of a run, and begin to start Spark for it; returns the topology."""
    start_up.reached("command")
    topology = load_topology(options.topology)
    check_topology_config(options.config)
    graph = graph_of(topology, options.name or None, options.config, options.par)
    if options.scheduler is not None and options.scheduler != OFF:
        make_scheduler(options.scheduler, options.scheduler_parameters)
    check_settings(graph)
    check_engine_settings(options.settings)
    check_engine(options)
    if options.engine == RESIDENT:
        slots = options.slots or DEFAULT_SLOTS[RESIDENT]
        begin(options.master, application(options.cluster or default_name()), slots, options.spark)
    return topology


def begin_demo(workers: int) -> str:
    """Begin to start Spark for `millrace demo`; returns the name of its cluster."""
    start_up.reached("command")
    cluster = f"demo-{os.getpid()}"
    begin(demo_master(workers), application(cluster), workers)
    return cluster


def demo_master(workers: int) -> str:
    """The Spark of `millrace demo`, in a JVM of this process."""
    return f"local[{workers + 1}]"
