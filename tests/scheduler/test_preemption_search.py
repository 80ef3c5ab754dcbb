"""Dry runs over arrays: the answers are those of trying each node by itself."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.groups import PodDisruptionBudget
from koordinator.clock import FixedClock, rfc3339
from koordinator.scheduler.config import config
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.evaluation import Evaluation
from koordinator.scheduler.engine.post_filter import CycleDiagnosis
from koordinator.scheduler.engine.view import View
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.plugins.preemption import victims
from koordinator.scheduler.plugins.preemption.executor import DISRUPTION_TARGET, PREEMPTION
from koordinator.scheduler.plugins.preemption.plugin import DefaultPreemption
from koordinator.scheduler.plugins.preemption.victims import Candidate
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.small_cluster import SmallCluster
from tests.scheduler.world import node, pod
from tests.searches import examples

NOW_S = 1_800_000_000.0


class Scene:
    """A cluster and a preemptor, without a running scheduler."""

    def __init__(self) -> None:
        self.engine = Engine(config.SchedulerConfig(), FixedClock(NOW_S), plugins=installed_plugins())
        self.table = self.engine.table
        [self.profile] = self.engine.profiles.values()
        plugin = next(each for each in self.profile.plugins if isinstance(each, DefaultPreemption))
        self.preemptor = plugin.preemptor

    def info(self, body: dict[str, Any]) -> PodInfo:
        body["metadata"].setdefault("uid", body["metadata"]["name"])
        return PodInfo.of(from_builtins(body, Pod), self.table.registry)

    def diagnosis(self, preemptor: PodInfo) -> CycleDiagnosis:
        view = View(self.profile, self.table, self.engine.nominations, preemptor)
        return CycleDiagnosis(view, Evaluation(self.profile, self.table, preemptor), {})

    def plainly(self, preemptor: PodInfo) -> tuple[list[Candidate], Counter[str]]:
        """Every node by itself."""
        diagnosis, refusals = self.diagnosis(preemptor), Counter[str]()
        found = []
        for row in self.table.rows.tolist():
            answer = self.preemptor.search.try_row(preemptor, row, diagnosis)
            if isinstance(answer, Candidate):
                found.append(answer)
            else:
                refusals.update(answer.reasons)
        return found, refusals


AMOUNT = st.integers(0, 4)
RESIDENT = st.fixed_dictionaries(
    {
        "node": st.integers(0, 4),
        "cpu": AMOUNT,
        "memory": AMOUNT,
        "priority": st.integers(0, 3),
        "age": st.one_of(st.none(), st.integers(0, 2)),
        "app": st.sampled_from(("", "a", "b")),
        "port": st.sampled_from((0, 0, 0, 80)),
        "anti": st.sampled_from((False, False, False, True)),
    }
)
CLUSTER = st.fixed_dictionaries(
    {
        "residents": st.lists(RESIDENT, max_size=16),
        "pods_max": st.lists(st.integers(0, 5), min_size=5, max_size=5),
        "tainted": st.sets(st.integers(0, 4), max_size=2),
        "budgets": st.dictionaries(st.sampled_from(("a", "b")), st.integers(0, 2), max_size=2),
        "nominated": st.lists(st.tuples(st.integers(0, 4), AMOUNT), max_size=2),
        "preemptor": RESIDENT,
        "wants_gpu": st.booleans(),
        "spreads": st.sampled_from((False, False, True)),
        "joins": st.sampled_from((False, False, True)),
    }
)


def body_of(name: str, facts: dict[str, Any]) -> dict[str, Any]:
    body = pod(name, cpu=str(facts["cpu"]), memory=f"{facts['memory']}Gi", priority=facts["priority"])
    if facts["app"]:
        body["metadata"]["labels"] = {"app": facts["app"]}
    if facts["port"]:
        body["spec"]["containers"][0]["ports"] = [{"hostPort": facts["port"], "containerPort": 1}]
    if facts["anti"]:
        term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "a"}}}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        body["spec"]["affinity"] = {"podAntiAffinity": required}
    if facts["age"] is not None:
        body["status"] = {"startTime": rfc3339(NOW_S - facts["age"])}
    return body


def scene_of(facts: dict[str, Any]) -> tuple[Scene, PodInfo]:
    scene = Scene()
    for number, pods_max in enumerate(facts["pods_max"]):
        taints = [{"key": "k", "effect": "NoSchedule"}] if number in facts["tainted"] else []
        body = node(f"n{number}", cpu="6", memory="6Gi", pods=pods_max, taints=taints)
        scene.table.set_node(from_builtins(body, Node))
    for number, each in enumerate(facts["residents"]):
        scene.table.assign(scene.info(body_of(f"p{number}", each)), f"n{each['node']}")
    for app, allowed in facts["budgets"].items():
        budget = {
            "metadata": {"name": app, "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": app}}},
            "status": {"disruptionsAllowed": allowed},
        }
        scene.preemptor.budgets.set(from_builtins(budget, PodDisruptionBudget))
    for number, (where, cpu) in enumerate(facts["nominated"]):
        scene.engine.nominations.set(scene.info(pod(f"q{number}", cpu=str(cpu), priority=9)), f"n{where}")
    body = body_of("preemptor", {**facts["preemptor"], "priority": 2})
    if facts["wants_gpu"]:
        body["spec"]["containers"][0]["resources"]["requests"]["example.com/gpu"] = "1"
    selector = {"matchLabels": {"app": "b"}}
    if facts["spreads"]:
        constraint = {"topologyKey": "kubernetes.io/hostname", "maxSkew": 1, "labelSelector": selector}
        body["spec"]["topologySpreadConstraints"] = [{**constraint, "whenUnsatisfiable": "DoNotSchedule"}]
        body["metadata"]["labels"] = {"app": "b"}
    if facts["joins"]:
        term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}
        affinity = body["spec"].setdefault("affinity", {})
        affinity["podAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    return scene, scene.info(body)


@settings(max_examples=examples(60), deadline=None)
@given(CLUSTER)
def test_the_search_finds_what_trying_each_node_finds(facts: dict[str, Any]) -> None:
    scene, preemptor = scene_of(facts)
    expected, refusals = scene.plainly(preemptor)

    rows = scene.table.rows
    found = scene.preemptor.search.run(preemptor, rows, scene.diagnosis(preemptor), wanted=rows.size + 1)

    assert [option.candidate() for option in found.options] == expected
    assert [option.rank for option in found.options] == [victims.rank(each) for each in expected]
    assert found.refusals == refusals


@settings(max_examples=examples(20), deadline=None)
@given(CLUSTER, st.integers(1, 3))
def test_the_search_stops_when_it_has_enough_one_of_them_harmless(facts: dict[str, Any], wanted: int) -> None:
    scene, preemptor = scene_of(facts)
    expected, _ = scene.plainly(preemptor)

    found = scene.preemptor.search.run(preemptor, scene.table.rows, scene.diagnosis(preemptor), wanted)

    enough = len(expected)
    for count in range(wanted, len(expected) + 1):
        if any(each.violations == 0 for each in expected[:count]):
            enough = count
            break
    assert [option.node_name for option in found.options] == [each.node_name for each in expected[:enough]]


def test_the_search_leaves_the_table_as_it_was() -> None:
    scene, preemptor = scene_of(
        {
            "residents": [
                {
                    "node": 0,
                    "cpu": 4,
                    "memory": 1,
                    "priority": 0,
                    "age": 1,
                    "app": "a",
                    "port": 80,
                    "anti": True,
                }
            ],
            "pods_max": [5] * 5,
            "tainted": set(),
            "budgets": {"a": 0},
            "nominated": [],
            "preemptor": {
                "node": 0,
                "cpu": 4,
                "memory": 1,
                "age": None,
                "app": "a",
                "port": 80,
                "anti": True,
            },
            "wants_gpu": False,
            "spreads": False,
            "joins": False,
        }
    )
    before = scene.table.requested.copy(), scene.table.changes.sequence

    scene.preemptor.outlook(preemptor, scene.diagnosis(preemptor))

    assert (scene.table.requested == before[0]).all()
    assert scene.table.changes.sequence == before[1]


def test_nobody_has_to_go_for_resources_and_places_that_no_filter_counts() -> None:
    enabled = [{"name": name} for name in ("NodePorts", "PrioritySort", "DefaultBinder", "DefaultPreemption")]
    plugins = {"multiPoint": {"enabled": enabled, "disabled": [{"name": "*"}]}}
    cluster = SmallCluster(config.decode({"profiles": [{"plugins": plugins}]}))
    cluster.node(node("full", cpu="1", pods=1))
    cluster.pod(pod("resident", cpu="1", nodeName="full"))
    preemptor = cluster.pod(pod("p", cpu="1", priority=10))

    found = cluster.plugin(DefaultPreemption).preemptor.dry_run(
        preemptor, cluster.table.rows, cluster.refused(preemptor)
    )

    assert found.options == []


@pytest.mark.parametrize("ours", ["", "n0", "n1"])
@pytest.mark.parametrize("reported", ["", "n0", "n1"])
def test_a_preemptor_waits_for_the_node_that_we_nominated_rather_than_for_the_one_of_its_status(
    ours: str, reported: str
) -> None:
    scene = Scene()
    for name in ("n0", "n1"):
        scene.table.set_node(from_builtins(node(name, cpu="4"), Node))
    victim = pod("low", cpu="4", priority=1)
    victim["metadata"]["deletionTimestamp"] = rfc3339(NOW_S)
    reason = {"type": DISRUPTION_TARGET, "status": "True", "reason": PREEMPTION}
    scene.table.assign(scene.info(victim | {"status": {"conditions": [reason]}}), "n0")
    preemptor = scene.info(pod("high", cpu="4", priority=10) | {"status": {"nominatedNodeName": reported}})
    scene.engine.nominations.set(preemptor, ours)

    waits = scene.preemptor.objection(preemptor, scene.diagnosis(preemptor)) != ""
    assert waits is ((ours or reported) == "n0")
