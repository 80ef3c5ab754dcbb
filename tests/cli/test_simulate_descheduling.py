"""`koordinator simulate descheduling` on dumps, as a user runs it."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from koordinator.cli import main as cli

AT = "2026-01-02T03:04:05Z"
RULES = """
apiVersion: descheduler/v1alpha2
kind: DeschedulerConfiguration
profiles:
- plugins: {balance: {enabled: [{name: LowNodeLoad}]}}
  pluginConfig:
  - name: LowNodeLoad
    args:
      lowThresholds: {cpu: 30, memory: 30}
      highThresholds: {cpu: 50, memory: 50}
"""

Json = dict[str, Any]


class Dumped:
    """A cluster to be: nodes of 10 cores and 40 GiB, pods with what they request and use."""

    def __init__(self) -> None:
        self.items: list[Json] = []
        self.usage: dict[str, list[Json]] = {}

    def node(self, name: str, **spec: Any) -> None:
        allocatable = {"cpu": "10", "memory": "40Gi", "pods": "110"}
        ready = [{"type": "Ready", "status": "True", "lastHeartbeatTime": AT}]
        status = {"allocatable": allocatable, "conditions": ready}
        labels = {"kubernetes.io/hostname": name}
        self.items.append(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": labels},
                "spec": spec,
                "status": status,
            }
        )
        self.usage[name] = []

    def workload(
        self, name: str, node: str, count: int, use: tuple[int, int], asks: str = "1", **meta: Any
    ) -> None:
        """Pods of a ReplicaSet on a node; each uses so many milli-cores and MiB."""
        kind = "ReplicaSet"
        uid = f"uid-{name}"
        self.items.append(
            {
                "apiVersion": "apps/v1",
                "kind": kind,
                "metadata": {"name": name, "namespace": "default", "uid": uid},
                "spec": {"replicas": max(count, 4), "selector": {"matchLabels": {"app": name}}},
            }
        )
        for number in range(count):
            own = f"{name}-{number}"
            owner = {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": uid, "controller": True}
            resources = {"requests": {"cpu": asks, "memory": "1Gi"}}
            self.items.append(
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {
                        "name": own,
                        "namespace": "default",
                        "uid": f"uid-{own}",
                        "labels": {"app": name, **meta.get("labels", {})},
                        "creationTimestamp": AT,
                        "ownerReferences": [owner],
                    },
                    "spec": {
                        "nodeName": node,
                        "schedulerName": "koord-scheduler",
                        "containers": [{"name": "main", "resources": resources}],
                    },
                    "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
                }
            )
            amounts = {"cpu": f"{use[0]}m", "memory": f"{use[1]}Mi"}
            used = {"namespace": "default", "name": own, "podUsage": {"resources": amounts}}
            self.usage[node].append(used)

    def budget(self, app: str, allowed: int) -> None:
        self.items.append(
            {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": {"name": app, "namespace": "default"},
                "spec": {"selector": {"matchLabels": {"app": app}}},
                "status": {"disruptionsAllowed": allowed},
            }
        )

    def objects(self) -> list[Json]:
        """Everything, with a fresh NodeMetric of each node that has a list of usage."""
        metrics = [
            {
                "apiVersion": "slo.koordinator.sh/v1alpha1",
                "kind": "NodeMetric",
                "metadata": {"name": node},
                "status": {
                    "updateTime": AT,
                    "nodeMetric": {
                        "nodeUsage": {"resources": {"cpu": "0", "memory": "0"}},
                        "systemUsage": {"resources": {"cpu": "0", "memory": "0"}},
                    },
                    "podsMetric": pods,
                },
            }
            for node, pods in self.usage.items()
        ]
        return [*self.items, *metrics]

    def simulated(self, folder: Path, *args: str) -> Result:
        (folder / "all.json").write_text(json.dumps(self.objects()))
        (folder / "descheduler.yaml").write_text(RULES)
        command = ["simulate", "descheduling", "--dump", str(folder / "all.json")]
        return CliRunner().invoke(
            cli.main, [*command, "--descheduler-config", str(folder / "descheduler.yaml"), *args]
        )

    def report(self, folder: Path, exit_code: int = 0) -> Any:
        result = self.simulated(folder, "-o", "json")
        assert result.exit_code == exit_code, result.output
        return json.loads(result.stdout)


@pytest.fixture
def dumped() -> Dumped:
    """One node at 60 % of its CPU, where 50 % is hot, and a free one."""
    made = Dumped()
    made.node("hot")
    made.node("cold")
    made.workload("web", "hot", 3, (1500, 512))
    made.workload("batch", "hot", 3, (500, 512))
    return made


def test_one_move_cools_a_node(dumped: Dumped, tmp_path: Path) -> None:
    found = dumped.report(tmp_path)

    assert (found["hotBefore"], found["hotAfter"]) == (1, 0)
    [move] = found["moves"]
    assert (move["pod"], move["source"], move["target"]) == ("default/web-0", "hot", "cold")
    assert found["workloads"] == [{"workload": "default/ReplicaSet/web", "moves": 1, "replicas": 4}]
    heat = found["hot"][0]["resources"]["cpu"]
    assert (heat["before"], heat["after"], heat["limit"]) == (6000, 4500, 5000)


def test_the_text_tells_the_moves_and_whom_they_disturb(dumped: Dumped, tmp_path: Path) -> None:
    result = dumped.simulated(tmp_path)

    assert "1 moves: 1 of 2 nodes are hot, 0 would stay hot." in result.output
    assert "default/ReplicaSet/web" in result.output
    assert "cooled" in result.output


def test_the_scheduler_has_the_last_word_about_a_destination(dumped: Dumped, tmp_path: Path) -> None:
    """By usage the cold node has room; by requests it is full."""
    dumped.workload("lazy", "cold", 1, (100, 100), asks="9500m")

    found = dumped.report(tmp_path, exit_code=3)

    assert found["moves"] == []
    [stuck] = found["hot"]
    assert "Insufficient cpu" in stuck["why"]
    assert (stuck["pod"], stuck["excess"], stuck["needs"]["cpu"]) == ("default/web-0", {"cpu": 1000}, 1500)


def test_each_destination_is_asked_after_all_earlier_moves(tmp_path: Path) -> None:
    """The free node takes one of the two pods that would have to go, by requests."""
    made = Dumped()
    made.node("hot-a")
    made.node("hot-b")
    made.node("cold")
    made.workload("a", "hot-a", 4, (1500, 100), asks="2")
    made.workload("b", "hot-b", 4, (1450, 100), asks="2")
    made.workload("lazy", "cold", 1, (100, 100), asks="7")

    found = made.report(tmp_path, exit_code=3)

    assert [(move["source"], move["target"]) for move in found["moves"]] == [("hot-a", "cold")]
    assert (found["hotBefore"], found["hotAfter"]) == (2, 1)
    assert "Insufficient cpu" in found["hot"][1]["why"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        pytest.param(
            {"labels": {"pod-group.scheduling.sigs.k8s.io": "train"}}, "a gang", id="gangs stay whole"
        ),
        pytest.param(
            {}, "disruption budget default/web lets no more pods go", id="a disruption budget that is used up"
        ),
    ],
)
def test_pods_that_may_not_move_stay(given: Json, reason: str, tmp_path: Path) -> None:
    made = Dumped()
    made.node("hot")
    made.node("cold")
    made.workload("web", "hot", 4, (1500, 512), **given)
    made.budget("web", 0)

    found = made.report(tmp_path, exit_code=3)

    assert found["moves"] == []
    assert reason in json.dumps([found["hot"][0]["why"], found["notMovable"]])


def test_two_pods_change_places_where_nodes_are_skewed(tmp_path: Path) -> None:
    """The one node has too much CPU in use, the other is full of memory: neither takes a pod, both take a swap."""
    made = Dumped()
    made.node("cpu")
    made.node("memory")
    made.workload("calm", "cpu", 1, (4000, 5000))
    made.workload("burner", "cpu", 1, (2000, 3500))
    made.workload("keeper", "memory", 1, (500, 16384))
    made.workload("cache", "memory", 1, (300, 4000))

    found = made.report(tmp_path)

    assert {(move["pod"], move["target"], move["step"]) for move in found["moves"]} == {
        ("default/calm-0", "memory", 0),
        ("default/keeper-0", "cpu", 0),
    }
    assert (found["hotBefore"], found["hotAfter"]) == (1, 0)


def test_a_node_whose_agent_is_silent_takes_no_part(dumped: Dumped, tmp_path: Path) -> None:
    del dumped.usage["cold"]

    found = dumped.report(tmp_path, exit_code=3)

    assert (found["nodes"], found["unmeasured"], found["moves"]) == (1, 1, [])


def test_a_workload_rests_after_a_move(dumped: Dumped, tmp_path: Path) -> None:
    ref = {"namespace": "default", "name": "web-1"}
    dumped.items.append(
        {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "PodMigrationJob",
            "metadata": {"name": "moved", "creationTimestamp": AT},
            "spec": {"podRef": {"namespace": "default", "name": "web-gone"}},
            "status": {"phase": "Succeeded", "podRef": ref},
        }
    )

    found = dumped.report(tmp_path)

    assert [move["workload"] for move in found["moves"]] == ["default/ReplicaSet/batch"] * 2
    assert found["notMovable"] == {"its workload was moved a short time ago": 3}


def test_without_low_node_load_there_is_nothing_to_plan_by(dumped: Dumped, tmp_path: Path) -> None:
    (tmp_path / "bare.yaml").write_text(
        "apiVersion: descheduler/v1alpha2\nkind: DeschedulerConfiguration\nprofiles: [{}]\n"
    )

    result = dumped.simulated(tmp_path, "--descheduler-config", str(tmp_path / "bare.yaml"))

    assert result.exit_code == 1
    assert "no profile with LowNodeLoad" in result.output
