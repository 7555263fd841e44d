"""Ready-made topologies are found by their names, as `millrace run` finds them."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from millrace.cli.begin import load_topology
from millrace.cli.main import app
from millrace.config import check_topology_config
from millrace.control.submission import check_settings
from millrace.model.graph import graph_of

DATAFLOWS = "millrace.workloads.dataflows.topologies:"


@pytest.mark.parametrize(("name", "tasks"), [
    *((f"{DATAFLOWS}{prefix}{name}", instances + 2) for prefix in ("", "Keyed") for name, instances in (
        ("Linear", 5), ("Diamond", 8), ("Star", 8), ("Traffic", 13), ("Grid", 21), ("Linear50", 50))),
    ("millrace.workloads.nstorm:NStormWordCount", 40), ("millrace.workloads.nstorm:HarmonicWordCount", 40),
    ("millrace.workloads.topn:AuditedTopN", 21), ("millrace.workloads.topn:AuditedWideTopN", 12),
    ("millrace.workloads.logstream_audit:AuditedLogStream", 24),
])
def test_a_topology_is_found_by_its_name(name: str, tasks: int) -> None:
    graph = graph_of(load_topology(name))
    check_settings(graph)
    check_topology_config(graph.config)
    assert graph.name == name.partition(":")[2].lower()
    assert len(graph.tasks()) == tasks


def test_a_dataflow_is_drawn() -> None:
    result = CliRunner().invoke(app, ["visualize", f"{DATAFLOWS}Star"])
    assert result.exit_code == 0 and result.output.startswith("flowchart")
