"""Ways to start Spark sooner: an early start beside imports, converters that ask only about numpy, forks that are ready."""

from __future__ import annotations

import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from millrace.cli import begin as commands
from millrace.cli.begin import RunOptions, begin_demo, begin_run
from millrace.errors import MillraceError, TopologyError
from millrace.spark.session import early, start_up
from millrace.spark.session.converters import is_of_numpy
from millrace.spark.session.settings import DAEMON, batch_settings, session_settings

MASTER = "local[2]"


@pytest.fixture
def contexts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The arguments of each context that is made."""
    made: list[tuple[Any, ...]] = []

    def make(*arguments: Any) -> Any:
        made.append((*arguments, threading.current_thread() is threading.main_thread()))
        return SimpleNamespace(number=len(made))

    monkeypatch.setattr(early, "make_context", make)
    monkeypatch.setattr(early, "_begun", {})
    return made


def test_a_context_that_was_begun_is_used_once(contexts: list[tuple[Any, ...]]) -> None:
    early.begin(MASTER, "words", 2, {"spark.a": "1"})
    first: Any = early.early_or_new(MASTER, "words", 2, {"spark.a": "1"})
    again: Any = early.early_or_new(MASTER, "words", 2, {"spark.a": "1"})
    assert (first.number, again.number) == (1, 2)
    assert contexts == [(MASTER, "words", 2, {"spark.a": "1"}, False), (MASTER, "words", 2, {"spark.a": "1"}, True)]


def test_a_cluster_of_several_machines_is_not_asked_early(contexts: list[tuple[Any, ...]]) -> None:
    early.begin("spark://host:7077", "words", 2)
    assert early._begun == {} and contexts == []


def test_the_error_of_an_early_start_is_raised_where_spark_is_wanted(monkeypatch: pytest.MonkeyPatch,
                                                                     contexts: list[tuple[Any, ...]]) -> None:
    def refuse(*arguments: Any) -> None:
        raise MillraceError("no Java")

    monkeypatch.setattr(early, "make_context", refuse)
    early.begin(MASTER, "words", 2)
    with pytest.raises(MillraceError, match="no Java"):
        early.early_or_new(MASTER, "words", 2)


def test_a_run_begins_what_its_engine_asks_for(monkeypatch: pytest.MonkeyPatch, contexts: list[tuple[Any, ...]]) -> None:
    options = RunOptions("millrace.workloads.wordcount:WordCount", MASTER, None, None, {}, {}, 0.0, "mine", None, 0, False,
                         {"spark.a": "1"}, {}, None, {}, None)
    assert begin_run(options).__name__ == "WordCount"
    asked: Any = early.early_or_new(MASTER, "millrace mine", 2, {"spark.a": "1"})
    assert asked.number == 1 == len(contexts)
    cluster = begin_demo(3)
    asked = early.early_or_new(commands.demo_master(3), f"millrace {cluster}", 3, None)
    assert asked.number == 2 == len(contexts)


def test_spark_is_not_started_for_a_topology_that_cannot_run(contexts: list[tuple[Any, ...]]) -> None:
    options = RunOptions("millrace.errors:MillraceError", MASTER, None, None, {}, {}, 0.0, None, None, 0, False, {}, {}, None,
                         {}, None)
    with pytest.raises(TopologyError):
        begin_run(options)
    assert contexts == []


@pytest.mark.parametrize(("value", "expected"), [
    (np.float64(1), True), (np.zeros(2), True), (np.ma.zeros(2), True), (type("Own", (np.ndarray,), {})(2), True),
    ("text", False), (True, False), (None, False), ([1], False)])
def test_values_of_numpy(value: object, expected: bool) -> None:
    assert is_of_numpy(value) == expected


def test_converters_are_asked_about_numpy_only() -> None:
    """In a process of its own: whether pandas is imported depends on what was before."""
    program = ("import sys, numpy; from millrace.spark.session.converters import ask_only_about_numpy as ask; ask(); ask()\n"
               "from pyspark.sql.types import NumpyArrayConverter as Arrays, NumpyScalarConverter as Scalars\n"
               "assert not Scalars().can_convert('text') and not Arrays().can_convert([1])\n"
               "assert 'pandas' not in sys.modules\n"
               "assert Scalars().can_convert(numpy.int64(1)) and Arrays().can_convert(numpy.zeros(2))\n"
               "assert not Arrays().can_convert(numpy.zeros((2, 2)))")
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True)


def test_forks_have_the_code_of_workers_and_draw_different_numbers() -> None:
    program = ("import os, sys; import millrace.spark.cluster.daemon as daemon, numpy.random as random\n"
               "assert 'millrace.runtime.worker.process' in sys.modules and 'pyspark.worker' in sys.modules\n"
               "os.register_at_fork(after_in_child=daemon._draw_anew)\n"
               "random.seed(1)\n"
               "for _ in range(2):\n"
               "    if not os.fork():\n"
               "        print(random.random(), flush=True); os._exit(0)\n"
               "    os.wait()\n"
               "print(random.random())")
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, capture_output=True, text=True)
    assert len(set(done.stdout.split())) == 3


def test_only_workers_on_this_machine_are_forked_by_a_daemon_of_millrace() -> None:
    key = "spark.python.daemon.module"
    assert session_settings("local-cluster[2,2,700]", 2)[1][key] == session_settings(MASTER, 2)[1][key] == DAEMON
    assert key not in session_settings("spark://host:7077", 2)[1]
    assert key not in batch_settings(MASTER)[1]
    assert session_settings(MASTER, 2, {key: "mine"})[1][key] == batch_settings(MASTER, {key: "mine"})[1][key] == "mine"


def test_steps_of_the_start_are_noted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_up, "_reached", {})
    ages = iter([1.0, 2.0, 3.0])
    monkeypatch.setattr(start_up, "seconds_of_process", lambda: next(ages))
    assert [start_up.reached("java"), start_up.reached("spark"), start_up.reached("java")] == [1.0, 2.0, 1.0]
    assert start_up.steps() == {"java": 1.0, "spark": 2.0}


def test_the_age_of_this_process_is_known() -> None:
    before = start_up.seconds_of_process()
    assert 0 < before <= start_up.seconds_of_process()
