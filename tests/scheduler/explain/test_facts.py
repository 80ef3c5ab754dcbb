"""The figures behind a plugin's answer for one node."""

import json
from typing import Any

import pytest

from koordinator.api.decode import from_builtins
from koordinator.api.node_metric import NodeMetric
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.api.storage import CSINode, PersistentVolume, PersistentVolumeClaim
from koordinator.clock import rfc3339
from koordinator.scheduler.config import config
from koordinator.scheduler.explain.answer import PodAnswer, PodVerdict, Remedy
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler import world
from tests.scheduler.explain.builders import NOW_S, Bench, stock_config
from tests.scheduler.node_numa_resource import cluster as machines

ZONE = {"labels": {"zone": "a"}}


def details(bench: Bench, pod: PodInfo, plugin: str, node: str = "n") -> list[str]:
    [answer] = bench.ask(pod, nodes=(node,)).nodes
    return next(each.details for each in answer.plugins if each.plugin == plugin)


def feed(bench: Bench, obj: Any) -> None:
    """What an informer would bring."""
    for handle in bench.engine.handles:
        for watch in handle.watches:
            if watch.view is type(obj):
                watch.on_add(obj)


def load_aware(**args: Any) -> config.SchedulerConfig:
    plugin_config = [{"name": "LoadAwareScheduling", "args": args}]
    plugins = {
        point: {"enabled": [{"name": "LoadAwareScheduling"}]} for point in ("filter", "score", "reserve")
    }
    profile = {"schedulerName": "koord-scheduler", "plugins": plugins, "pluginConfig": plugin_config}
    return config.decode({"profiles": [profile]})


def metric(node: str, cpu: str, pods: dict[str, str] | None = None, *, age_s: float = 0.0) -> NodeMetric:
    def usage(amount: str) -> dict[str, Any]:
        return {"resources": {"cpu": amount, "memory": "1Gi"}}

    body = {
        "metadata": {"name": node},
        "status": {
            "updateTime": rfc3339(NOW_S - age_s),
            "nodeMetric": {"nodeUsage": usage(cpu)},
            "podsMetric": [
                {"namespace": "default", "name": name, "podUsage": usage(amount)}
                for name, amount in (pods or {}).items()
            ],
        },
    }
    return from_builtins(body, NodeMetric)


def remedies(answer: PodAnswer, kind: str) -> list[Remedy]:
    return [each for each in answer.remedies if each.kind == kind]


def test_resources_are_reported_with_what_is_requested_free_and_missing() -> None:
    bench = Bench(stock_config()).node("n", cpu="4", pods=1)
    bench.running("other", "n", cpu="3")

    found = details(bench, bench.info("web", cpu="2500m"), "NodeResourcesFit")

    assert found[0] == "cpu: 2.5 requested, 1 of 4 free, short by 1.5"
    assert found[1] == "memory: 1Gi requested, 15Gi of 16Gi free"
    assert found[2] == "pods: 1 of at most 1"


def test_who_holds_a_host_port_is_named() -> None:
    def serving(name: str) -> dict[str, Any]:
        body = world.pod(name)
        body["spec"]["containers"][0]["ports"] = [{"hostPort": 80, "containerPort": 80, "protocol": "TCP"}]
        return body

    bench = Bench(stock_config()).node("n")
    bench.engine.table.assign(bench.of(serving("nginx")), "n")

    found = details(bench, bench.of(serving("web")), "NodePorts")

    assert found == ["port 80/TCP of 0.0.0.0 is taken by pod default/nginx"]


def test_a_spread_constraint_is_reported_with_counts_and_skew() -> None:
    constraint = {
        "maxSkew": 1,
        "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchExpressions": [{"key": "other", "operator": "DoesNotExist"}]},
    }
    bench = Bench(stock_config()).node("n", **ZONE).node("m", labels={"zone": "b"}).node("bare")
    for name in ("one", "two"):
        bench.running(name, "n")
    pod = bench.info("web", topologySpreadConstraints=[constraint])

    assert details(bench, pod, "PodTopologySpread") == [
        "zone=a: 2 such pods, fewest in any zone: 0; skew 3 with this pod, maxSkew 1"
    ]
    assert details(bench, pod, "PodTopologySpread", "bare") == ["has no label zone"]


def term(kind: str, app: str) -> dict[str, Any]:
    wanted = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": app}}}
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [wanted]}}}


def labelled(bench: Bench, name: str, app: str, **spec: Any) -> PodInfo:
    body = world.pod(name, **spec)
    body["metadata"]["labels"] = {"app": app}
    return bench.of(body)


def test_pods_that_affinity_is_about_are_named() -> None:
    bench = Bench(stock_config()).node("n", **ZONE).node("beside", **ZONE).node("far", labels={"zone": "b"})
    bench.engine.table.assign(labelled(bench, "db", "db"), "beside")
    bench.engine.table.assign(labelled(bench, "shy", "shy", **term("podAntiAffinity", "web")), "far")
    apart = labelled(bench, "web", "web", **term("podAntiAffinity", "db"))
    near = labelled(bench, "web", "web", **term("podAffinity", "db"))

    assert details(bench, apart, "InterPodAffinity") == [
        "pod default/db is in the same zone, which this pod wants to be away from"
    ]
    assert details(bench, near, "InterPodAffinity") == [
        "pod default/db is in the same zone, as this pod wants"
    ]
    assert details(bench, near, "InterPodAffinity", "far") == [
        "pod default/shy in the same zone does not want this pod there",
        "no pod that it must be near is in the same zone; elsewhere: 1",
    ]


def test_measured_usage_is_reported_with_threshold_and_estimate() -> None:
    bench = Bench(load_aware(usageThresholds={"cpu": 65})).node("n", cpu="4")
    feed(bench, metric("n", "2500m"))

    found = details(bench, bench.info("web", cpu="1"), "LoadAwareScheduling")

    assert found[0] == (
        "cpu: 84% usage with this pod, threshold 65% (2.5 used, 0.85 estimated for the pod, of 4)"
    )
    assert found[1].endswith("no threshold (1Gi used, 717Mi estimated for the pod, of 16Gi)") or (
        "memory: 11% usage with this pod, no threshold" in found[1]
    )


def test_the_threshold_that_is_told_to_help_does_and_one_less_does_not() -> None:
    def bench(threshold: int) -> Bench:
        made = Bench(load_aware(usageThresholds={"cpu": threshold})).node("n", cpu="4").node("m", cpu="4")
        feed(made, metric("n", "2500m"))
        feed(made, metric("m", "3100m"))
        return made

    strict = bench(65)
    answer = strict.ask(strict.info("web", cpu="1"))

    assert [(each.change, each.node_count) for each in remedies(answer, "threshold")] == [
        ("raise the cpu threshold of usage to at least 84%", 1),
        ("raise the cpu threshold of usage to at least 99%", 2),
    ]
    for threshold, verdict in ((83, PodVerdict.UNSCHEDULABLE), (84, PodVerdict.SCHEDULABLE)):
        tried = bench(threshold)
        assert tried.ask(tried.info("web", cpu="1")).verdict is verdict


def test_the_usage_that_is_told_to_go_is_just_enough() -> None:
    bench = Bench(load_aware(usageThresholds={"cpu": 65})).node("n", cpu="4")
    feed(bench, metric("n", "2500m"))

    [found] = remedies(bench.ask(bench.info("web", cpu="1")), "usage")

    assert found.change == "lower the usage of cpu by 0.731 cores on n"
    for cpu, verdict in (("1770m", PodVerdict.UNSCHEDULABLE), ("1769m", PodVerdict.SCHEDULABLE)):
        feed(bench, metric("n", cpu))
        assert bench.ask(bench.info("web", cpu="1")).verdict is verdict


def test_a_bound_pod_does_not_stand_in_its_own_way_with_its_measured_usage() -> None:
    bench = Bench(load_aware(usageThresholds={"cpu": 65})).node("n", cpu="4")
    pod = bench.running("web", "n", cpu="2", nodeName="n")
    feed(bench, metric("n", "2400m", {"web": "2"}))
    room = bench.engine.profiles["koord-scheduler"].plugins
    plugin = next(each for each in room if each.name == "LoadAwareScheduling")
    row = bench.engine.table.row_of("n")
    assert row is not None
    before = plugin.handle.columns["room"].values[:, row].tolist()

    answer = bench.ask(pod)

    assert answer.sentence == "Pod default/web is on n, and no node scores better now (1 fit)."
    assert not any("counts as used" in note for note in answer.notes)
    assert plugin.handle.columns["room"].values[:, row].tolist() == before


def test_what_cannot_be_taken_out_of_the_measured_usage_is_said() -> None:
    bench = Bench(load_aware(usageThresholds={"cpu": 65})).node("n", cpu="4")
    body = world.pod("web", cpu="2", nodeName="n")
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": rfc3339(NOW_S - 600)}
    body["status"] = {"conditions": [placed]}
    pod = bench.of(body)
    bench.engine.table.assign(pod, "n")
    feed(bench, metric("n", "2400m"))

    answer = bench.ask(pod)

    assert "what the pod itself uses is not reported, and counts as used by others" in answer.notes


def numa_bench(policy: str = "SingleNUMANode") -> Bench:
    bench = Bench().node("n", cpu="16", labels={"node.koordinator.sh/numa-topology-policy": policy})
    feed(bench, from_builtins(machines.report("n"), NodeResourceTopology))
    return bench


def test_numa_nodes_are_reported_with_what_is_left_and_what_to_free() -> None:
    bench = numa_bench()
    for number in range(2):
        pod = bench.of(machines.pod(f"held-{number}", cpu="6"))
        result = bench.cycle(pod)
        assert getattr(result, "node_name", "") == "n"
    wanting = bench.of(machines.pod("web", cpu="3"))

    found = details(bench, wanting, "NodeNUMAResource")
    [free] = remedies(bench.ask(wanting), "room")

    assert found[0] == "NUMA policy SingleNUMANode for 3 cores, 1 GiB of memory"
    assert found[1] == "NUMA node 0: 2 cores, 15 GiB of memory left; CPUs 0-7 not bound"
    assert free.change == "free 1 core on NUMA node 0 of n"
    assert bench.ask(bench.of(machines.pod("web", cpu="2"))).verdict is PodVerdict.SCHEDULABLE


@pytest.mark.parametrize(
    ("cpu", "reported"), [("2", "binds 2 CPUs (FullPCPUs, required)"), ("1500m", "binds 1 CPUs (any)")]
)
def test_how_a_node_binds_a_pod_is_reported_as_far_as_it_is_known(cpu: str, reported: str) -> None:
    bench = Bench().node("n", cpu="16", labels={"node.koordinator.sh/cpu-bind-policy": "FullPCPUsOnly"})
    feed(bench, from_builtins(machines.report("n"), NodeResourceTopology))
    assert details(bench, bench.of(machines.pod("web", cpu=cpu)), "NodeNUMAResource")[0] == reported


@pytest.mark.parametrize(
    ("bound", "order"), [("0-12", ["1 on any", "2 on zones"]), ("0-14", ["2 on zones", "3 on any"])]
)
def test_the_node_that_lacks_the_smaller_part_is_told_first(bound: str, order: list[str]) -> None:
    bench = Bench().node("any", cpu="16")
    bench.node("zones", cpu="16", labels={"node.koordinator.sh/numa-topology-policy": "SingleNUMANode"})
    held = {"any": bound, "zones": "0-5,8-13"}
    for number, (name, cpus) in enumerate(held.items()):
        feed(bench, from_builtins(machines.report(name), NodeResourceTopology))
        body = machines.pod(f"held-{number}", cpu="1", nodeName=name)
        status = {"cpuset": cpus}
        body["metadata"]["annotations"]["scheduling.koordinator.sh/resource-status"] = json.dumps(status)
        bench.engine.table.assign(bench.of(body), name)

    answer = bench.ask(bench.of(machines.pod("web", cpu="4", qos="LSR")))

    texts = {
        "1 on any": "free 1 CPUs that are bound to pods on any",
        "2 on zones": "free 2 CPUs that are bound to pods on NUMA node 0 of zones",
        "3 on any": "free 3 CPUs that are bound to pods on any",
    }
    assert [each.change for each in remedies(answer, "room")] == [texts[each] for each in order]


def claim(name: str, volume: str) -> PersistentVolumeClaim:
    return from_builtins(
        {
            "metadata": {
                "name": name,
                "namespace": "default",
                "annotations": {"pv.kubernetes.io/bind-completed": "yes"},
            },
            "spec": {"volumeName": volume, "accessModes": ["ReadWriteOncePod"]},
        },
        PersistentVolumeClaim,
    )


def volume(name: str, zone: str) -> PersistentVolume:
    expression = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone]}
    return from_builtins(
        {
            "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}},
            "spec": {
                "csi": {"driver": "disk.csi", "volumeHandle": name},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}},
            },
        },
        PersistentVolume,
    )


def using(*claims: str) -> dict[str, Any]:
    return {"volumes": [{"name": c, "persistentVolumeClaim": {"claimName": c}} for c in claims]}


def test_volumes_are_reported_with_their_places_users_and_limits() -> None:
    bench = Bench(stock_config()).node("n", labels={"topology.kubernetes.io/zone": "b"})
    for obj in (
        claim("data", "pv-1"),
        claim("logs", "pv-2"),
        volume("pv-1", "a"),
        volume("pv-2", "b"),
        from_builtins(
            {
                "metadata": {"name": "n"},
                "spec": {"drivers": [{"name": "disk.csi", "nodeID": "n", "allocatable": {"count": 1}}]},
            },
            CSINode,
        ),
    ):
        feed(bench, obj)
    bench.running("user", "n", **using("logs"))

    pod = bench.info("web", **using("data", "logs"))

    assert details(bench, pod, "VolumeRestrictions") == [
        "claim default/logs (ReadWriteOncePod) is used by pod default/user"
    ]
    assert details(bench, pod, "VolumeZone")[0] == (
        "a volume needs topology.kubernetes.io/zone in a; the node has b"
    )
    assert details(bench, pod, "VolumeBinding") == [
        "claim default/data is bound to volume pv-1, which does not reach this node",
        "claim default/logs is bound to volume pv-2, which reaches this node",
    ]
    assert details(bench, pod, "NodeVolumeLimits") == [
        "disk.csi: 1 volumes attached, 1 more for this pod, at most 1"
    ]


def test_volumes_to_detach_are_counted() -> None:
    bench = Bench(stock_config()).node("n")
    count = {"name": "disk.csi", "nodeID": "n", "allocatable": {"count": 2}}
    feed(bench, from_builtins({"metadata": {"name": "n"}, "spec": {"drivers": [count]}}, CSINode))
    for number in range(3):
        pv = {"csi": {"driver": "disk.csi", "volumeHandle": f"pv-{number}"}}
        body = {"metadata": {"name": f"pv-{number}"}, "spec": pv}
        feed(bench, from_builtins(body, PersistentVolume))
        feed(bench, claim(f"c{number}", f"pv-{number}"))
    bench.running("a", "n", **using("c0"))
    bench.running("b", "n", **using("c1"))

    [found] = remedies(bench.ask(bench.info("web", **using("c2"))), "volumes")

    assert found.change == "detach 1 volumes of disk.csi from n"
