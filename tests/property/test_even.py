"""The rules that Even keeps, on generated clusters, topologies and plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from hypothesis import assume, given
from hypothesis import strategies as st

from millrace.api.grouping import Grouping
from millrace.model.cluster import Cluster, Node, Slot
from millrace.model.graph import ComponentDef, Input, TopologyGraph
from millrace.model.plan import Plan
from millrace.schedulers.base import CannotPlace, NewPlan, NoChange, SchedulingResult
from millrace.schedulers.even import Even

GROUPS = 16


class Case(NamedTuple):
    """The arguments of a scheduler without the load, which Even ignores."""

    graphs: tuple[TopologyGraph, ...]
    cluster: Cluster
    plans: dict[str, Plan]

    def ask(self, scheduler: Even) -> SchedulingResult:
        return scheduler.schedule(self.graphs, self.cluster, {}, self.plans)


def component(name: str, par: int, keyed: bool, source: str | None) -> ComponentDef:
    grouping = Grouping.fields("x") if keyed else Grouping.SHUFFLE
    inputs = (Input(source, "default", grouping),) if source else ()
    return ComponentDef(name, "bolt" if source else "spout", "m:C", par, {}, (), inputs, False,
                        "process" if source else "next_tuple")


@st.composite
def topologies(draw: st.DrawFn, name: str) -> TopologyGraph:
    pars = draw(st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=4))
    components = tuple(component(f"c{number}", par, keyed, f"c{number - 1}" if number else None)
                       for number, (par, keyed) in enumerate(pars))
    return TopologyGraph(name, components, {"topology.key.groups": GROUPS}, draw(st.integers(0, 2)))


@st.composite
def clusters(draw: st.DrawFn, least: int = 0) -> Cluster:
    sizes = draw(st.lists(st.integers(0, 3), min_size=1, max_size=5).filter(lambda sizes: sum(sizes) >= least))
    numbers = iter(draw(st.permutations(range(sum(sizes) + 2))))
    slots = [Slot(f"n{node}", f"e{slot}", next(numbers)) for node, size in enumerate(sizes) for slot in range(size)]
    return Cluster(tuple(Node(f"n{node}", 4, 2400.0, 4096) for node in range(len(sizes))),
                   tuple(draw(st.permutations(slots))))


@st.composite
def cases(draw: st.DrawFn, least_slots: int = 0, others: bool = True) -> Case:
    """Draw up to three topologies; some run already, on live or dead slots, and one may not be part of the request."""
    cluster = draw(clusters(least_slots))
    graphs = tuple(draw(topologies(name)) for name in draw(st.sampled_from(["", "a", "ab", "abc"])))
    places = st.integers(0, len(cluster.slots) + 3)
    plans = {}
    for name in ("a", "b", "other") if others else ("a", "b"):
        ran = draw(st.none() | topologies(name))
        if ran is not None:
            owners = {part.name: tuple(draw(st.lists(st.integers(0, part.par - 1), min_size=GROUPS, max_size=GROUPS)))
                      for part in ran.bolts if part.keyed}
            plans[name] = Plan(draw(st.integers(1, 9)), {task: draw(places) for task in ran.tasks()}, owners)
    return Case(graphs, cluster, plans)


schedulers = st.builds(Even, one_worker_per_node=st.booleans(), spread_back=st.booleans())


def resulting(case: Case, result: SchedulingResult) -> Mapping[str, Plan]:
    """Return the resulting plans of the requested topologies."""
    assert not isinstance(result, CannotPlace), result
    if isinstance(result, NewPlan):
        return result.plans
    return {graph.name: case.plans[graph.name] for graph in case.graphs}


@given(schedulers, cases())
def test_every_task_is_placed_once_on_a_slot_that_is_alive_or_reported(scheduler: Even, case: Case) -> None:
    result = case.ask(scheduler)
    if case.graphs and not case.cluster.slots:
        assert isinstance(result, CannotPlace)
        assert result.missing == {graph.name: graph.tasks() for graph in case.graphs}
        assert f"cannot place {sum(len(graph.tasks()) for graph in case.graphs)} tasks" in result.reason
        return
    plans = resulting(case, result)
    alive = {slot.number for slot in case.cluster.slots}
    assert set(plans) == {graph.name for graph in case.graphs}
    for graph in case.graphs:
        assert set(plans[graph.name].placement) == set(graph.tasks())
        assert set(plans[graph.name].placement.values()) <= alive


@given(schedulers, cases())
def test_the_same_question_has_the_same_answer(scheduler: Even, case: Case) -> None:
    result = case.ask(scheduler)
    assert case.ask(scheduler) == result
    turned = replace(case.cluster, slots=case.cluster.slots[::-1], nodes=case.cluster.nodes[::-1])
    assert case._replace(cluster=turned).ask(scheduler) == result, "the order in which slots are listed must not matter"


@given(schedulers, cases(least_slots=1))
def test_tasks_stay_put_when_nothing_changed(scheduler: Even, case: Case) -> None:
    plans = resulting(case, case.ask(scheduler))
    again = case._replace(plans={**case.plans, **plans}).ask(scheduler)
    assert isinstance(again, NoChange), again


@given(schedulers, cases(least_slots=1))
def test_versions_rise_by_one_and_only_where_something_changed(scheduler: Even, case: Case) -> None:
    for name, new in resulting(case, case.ask(scheduler)).items():
        old = case.plans.get(name)
        if old is None:
            assert new.version == 1
        elif Plan.diff(old, new) or set(old.key_groups) != set(new.key_groups):
            assert new.version == old.version + 1
        else:
            assert new == old


@given(schedulers, cases(least_slots=1))
def test_key_groups_belong_to_the_tasks_of_keyed_components(scheduler: Even, case: Case) -> None:
    plans = resulting(case, case.ask(scheduler))
    for graph in case.graphs:
        owned = plans[graph.name].key_groups
        assert set(owned) == {part.name for part in graph.bolts if part.keyed}
        for name, owners in owned.items():
            assert len(owners) == GROUPS and set(owners) <= set(range(graph.component(name).par))


@given(cases(least_slots=1))
def test_without_spreading_back_a_task_moves_only_if_its_slot_is_gone(case: Case) -> None:
    plans = resulting(case, case.ask(Even(spread_back=False)))
    alive = {slot.number for slot in case.cluster.slots}
    for name, new in plans.items():
        for task in Plan.diff(case.plans[name], new).moved if name in case.plans else ():
            assert case.plans[name].placement[task] not in alive


@given(st.booleans(), cases(least_slots=1))
def test_one_worker_per_node(spread_back: bool, case: Case) -> None:
    plans = resulting(case, case.ask(Even(one_worker_per_node=True, spread_back=spread_back)))
    for plan in plans.values():
        workers = {(case.cluster.node_of(slot).name, slot) for slot in plan.placement.values()}
        assert len(workers) == len({node for node, _ in workers}), f"two slots of one node: {sorted(workers)}"


@given(topologies("a"), clusters(least=1))
def test_a_first_assignment_is_even_and_uses_as_many_nodes_as_it_can(graph: TopologyGraph, cluster: Cluster) -> None:
    case = Case((graph,), cluster, {})
    placement = resulting(case, case.ask(Even()))["a"].placement
    counts = Counter({slot.number: 0 for slot in cluster.slots}) + Counter(placement.values())
    loads = [counts[slot.number] for slot in cluster.slots]
    assert max(loads) - min(loads) <= 1
    with_slots = {slot.node for slot in cluster.slots}
    assert len({cluster.node_of(slot) for slot in placement.values()}) == min(len(placement), len(with_slots))
    for part in graph.components:
        alike = [sum(placement[task] == slot.number for task in placement if task.component == part.name)
                 for slot in cluster.slots]
        assert max(alike) - min(alike) <= 1, f"tasks of {part.name} are not spread: {alike}"


@given(cases(least_slots=1, others=False))
def test_any_plan_becomes_as_even_as_a_first_assignment(case: Case) -> None:
    assume(case.graphs)
    names = {graph.name for graph in case.graphs}
    case = case._replace(plans={name: plan for name, plan in case.plans.items() if name in names})
    plans = resulting(case, case.ask(Even()))
    alive = [slot.number for slot in case.cluster.slots]
    every = Counter(slot for plan in plans.values() for slot in plan.placement.values())
    assert max(every[slot] for slot in alive) - min(every[slot] for slot in alive) <= 1
    for graph in case.graphs:
        for part in graph.components:
            alike = Counter(slot for task, slot in plans[graph.name].placement.items() if task.component == part.name)
            assert max(alike[slot] for slot in alive) - min(alike[slot] for slot in alive) <= 1


@given(cases(least_slots=1, others=False))
def test_a_component_that_is_on_few_slots_moves_as_few_tasks_as_possible(case: Case) -> None:
    assume(case.graphs)
    graph = replace(case.graphs[0], components=case.graphs[0].components[:1], ackers=0)
    alive = [slot.number for slot in case.cluster.slots]
    before = Plan(1, {task: alive[task.index % (1 + len(alive) // 2)] for task in graph.tasks()})
    case = Case((graph,), case.cluster, {graph.name: before})
    moved = len(Plan.diff(before, resulting(case, case.ask(Even()))[graph.name]).moved)
    kept = sorted((Counter(before.placement.values())[slot] for slot in alive), reverse=True)
    least, larger = divmod(len(graph.tasks()), len(alive))
    assert moved == sum(max(0, count - least - (rank < larger)) for rank, count in enumerate(kept))
