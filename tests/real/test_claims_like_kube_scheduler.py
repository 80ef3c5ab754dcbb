"""Devices by claim: the same devices, and the same words, as kube-scheduler of the same release with the same gates."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import yaml

from koordinator.install.values import Values
from tests.e2e.cluster import until
from tests.free_ports import free_port
from tests.real import binaries
from tests.real.cluster import RealCluster, Shape
from tests.real.components import HOST
from tests.real.processes import Program
from tests.real.test_like_kube_scheduler import AT_ONCE, OURS, PLAIN, THEIRS
from tests.scheduler.dynamic_resources.builders import (
    DRIVER,
    claim,
    counter_slice,
    counters,
    device,
    device_class,
    exactly,
    of_size,
    partitioned,
    resource_slice,
    share,
    shareable,
    takes,
)

Json = dict[str, Any]
GATES = ",".join(
    f"DRA{gate}=true"
    for gate in (
        "PartitionableDevices",
        "ConsumableCapacity",
        "DeviceTaints",
        "DeviceTaintRules",
        "DeviceBindingConditions",
    )
)
SLICES, RULES, CLAIMS = "resourceslices", "devicetaintrules", "resourceclaims"
GROUP = "resource.k8s.io"
Ask = tuple[str, Json]
"""The name of a pod and of its claim, and the claim."""


@pytest.fixture(scope="module")
def both(_servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """Both schedulers on two nodes, each for pods that name it, with the stock plugins and the gates on."""
    stock = binaries.find("kube-scheduler")
    if stock is None:
        pytest.skip(binaries.why_missing(("kube-scheduler",)))
    config = yaml.safe_dump({**PLAIN, "profiles": [{"schedulerName": OURS}]})
    values = msgspec.convert({"scheduler": {"config": config, "featureGates": GATES}}, Values)
    served = (f"--feature-gates={GATES}", f"--runtime-config={GROUP}/v1alpha3=true")
    shape = Shape(nodes=2, node_cpu=32, values=values, manager=False, apiserver_flags=served)
    with RealCluster.open(tmp_path_factory.mktemp("both"), shape) as running:
        client = {"clientConnection": {"kubeconfig": str(running.kubeconfig)}}
        path = running.folder / "stock.yaml"
        path.write_text(yaml.safe_dump({**PLAIN, **client, "profiles": [{"schedulerName": THEIRS}]}))
        flags = (f"--config={path}", f"--bind-address={HOST}", f"--secure-port={free_port()}")
        scheduler = Program(
            "kube-scheduler", [str(stock), *flags, f"--feature-gates={GATES}"], running.folder / "stock.log"
        )
        try:
            create(running, "DeviceClass", device_class())
            running.kubectl("label", "namespace", "default", "resource.kubernetes.io/admin-access=true")
            yield running
        finally:
            scheduler.kill()


def create(cluster: RealCluster, kind: str, body: Json, version: str = "v1") -> None:
    whole = {"apiVersion": f"{GROUP}/{version}", "kind": kind, **body}
    cluster.kubectl("create", "-f", "-", text=json.dumps(whole))


def verdicts(cluster: RealCluster, who: str, objects: list[Json], asks: list[Ask]) -> list[Any]:
    """One after the other: the node and the allocation of each claim, or why there is none."""
    for body in objects:
        if "taint" in body["spec"]:
            create(cluster, "DeviceTaintRule", body, "v1alpha3")
        else:
            create(cluster, "ResourceSlice", body)
    found = []
    for name, wanted in asks:
        create(cluster, "ResourceClaim", wanted)
        cluster.kubectl("create", "-f", "-", text=json.dumps(pod(name, who)))
        found.append(verdict_on(cluster, name))
    cluster.run("delete", "pods", "--all", *AT_ONCE)
    cluster.run("delete", CLAIMS, "--all", "--wait=false")
    cluster.run("delete", "events", "--all")
    cluster.run("delete", f"{SLICES},{RULES}", "--all")
    until(lambda: not cluster.get(CLAIMS)["items"], 60, cluster.process)
    return found


def pod(name: str, who: str) -> Json:
    requests = {"requests": {"cpu": "10m"}}
    container = {"name": "main", "image": "web", "resources": {**requests, "claims": [{"name": "c"}]}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "schedulerName": who,
            "containers": [container],
            "resourceClaims": [{"name": "c", "resourceClaimName": name}],
        },
    }


def verdict_on(cluster: RealCluster, name: str) -> Any:
    """What becomes of a pod."""
    found: list[Any] = []

    def is_decided() -> bool:
        found.extend(verdict_now(cluster, name))
        return bool(found)

    until(is_decided, 60, cluster.process)
    return found[0]


def verdict_now(cluster: RealCluster, name: str) -> list[Any]:
    """Nothing, as long as there is none."""
    node = cluster.get("pod", name)["spec"].get("nodeName")
    if node:
        allocation = cluster.get(CLAIMS, name)["status"]["allocation"]
        allocation["allocationTimestamp"] = "a time" if "allocationTimestamp" in allocation else "none"
        for each in allocation["devices"]["results"]:
            if "shareID" in each:
                each["shareID"] = "a name"
        return [(node, allocation)]
    chosen = f"--field-selector=involvedObject.name={name},reason=FailedScheduling"
    events = cluster.get("events", chosen)["items"]
    return [events[0].get("note") or events[0]["message"]] if events else []


def one(name: str, *requests: Json, **more: Any) -> Ask:
    return name, claim(name, *requests, **more)


def part(name: str, size: int, **more: Any) -> Ask:
    return one(name, exactly(selectors=of_size(size), **more))


def alternatives(*sizes: int) -> Json:
    wanted = [
        {
            "name": f"s{size}",
            "deviceClassName": "gpu",
            "allocationMode": "ExactCount",
            "count": 1,
            "selectors": of_size(size),
        }
        for size in sizes
    ]
    return {"name": "r", "firstAvailable": wanted}


RANGE = {"default": "8Gi", "validRange": {"min": "8Gi", "max": "40Gi", "step": "8Gi"}}
VALUES = {"default": "10Gi", "validValues": ["10Gi", "20Gi", "40Gi"]}
TAINT = {"key": "example.com/broken", "value": "yes", "effect": "NoSchedule"}
APART = {"distinctAttribute": f"{DRIVER}/id"}
TOLERANT = [{"key": TAINT["key"], "operator": "Equal", "value": "yes", "effect": "NoSchedule"}]
NODE_0 = {
    "nodeSelectorTerms": [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-0"]}]}
    ]
}
ATTACHED = {"bindingConditions": ["Attached"], "bindingFailureConditions": ["Refused"]}
# Of `All` on devices that share counters nothing can be compared: kube-scheduler 1.35.4 ends by a nil pointer.
CASES: dict[str, tuple[list[Json], list[Ask]]] = {
    "parts of two cards": (
        partitioned("node-0", gpus=2),
        [
            part("quarter", 1),
            part("whole", 4),
            part("another", 4),
            part("halves", 2, count=2),
            part("half", 2),
            part("rest", 1),
            part("none", 1),
        ],
    ),
    "administrators": (
        [resource_slice("node-0", device("a"), device("b"), node="node-0")],
        [
            one("user"),
            one("admin", exactly(adminAccess=True, count=2)),
            one("second"),
            one("all", exactly(adminAccess=True, allocationMode="All")),
            one("none", exactly(adminAccess=True, count=3)),
        ],
    ),
    "devices with nodes of their own": (
        [
            resource_slice(
                "fabric",
                {**device("on-1", size=1), "nodeName": "node-1", "consumesCounters": [takes("links", lanes=1)]},
                {**device("anywhere", size=2), "allNodes": True, "consumesCounters": [takes("links", lanes=1)]},
                pool="fabric",
                count=2,
                perDeviceNodeSelection=True,
            ),
            counter_slice("links", counters("links", lanes=1), pool="fabric"),
        ],
        [one("both", exactly(count=2)), part("on-1", 1), one("none")],
    ),
    "a pool with two devices of one name": (
        [resource_slice("node-0", device("x"), device("y"), node="node-0", count=2),
         resource_slice("more", device("x"), node="node-0", count=2)],
        [one("none")],
    ),
    "a pool that misses a slice": (
        [resource_slice("node-0", device("x"), node="node-0", count=2)],
        [one("none")],
    ),
    "shares by amount": (
        [resource_slice("node-0", shareable("a"), shareable("b", id="x"), shareable("c", id="y"), node="node-0")],
        [
            one("large", share("50Gi")),
            one("small", share("30Gi")),
            one("two", share("30Gi", count=2)),
            one("apart", share("10Gi", count=2), constraints=[APART]),
            one("never", share("81Gi")),
            one("unknown", exactly(capacity={"requests": {"cores": "1"}})),
            one("whole"),
        ],
    ),
    "shares by policy": (
        [resource_slice("node-0", shareable("a", RANGE, size=1), shareable("b", VALUES, size=2), node="node-0")],
        [
            one("step", share("9Gi", selectors=of_size(1))),
            one("least", share("1Gi", selectors=of_size(1))),
            one("most", share("41Gi", selectors=of_size(1))),
            one("value", share("11Gi", selectors=of_size(2))),
            one("above", share("41Gi", selectors=of_size(2))),
            one("default", exactly(selectors=of_size(2))),
        ],
    ),
    "all that have room": (
        [resource_slice("node-0", shareable("a"), shareable("b"), device("c", memory="20Gi"), node="node-0")],
        [one("large", share("50Gi")), one("all", share("40Gi", allocationMode="All"))],
    ),
    "taints of slices and of rules": (
        [
            resource_slice("node-0", device("a", taints=[TAINT]), device("b"), device("c"), node="node-0"),
            {
                "metadata": {"name": "rule"},
                "spec": {
                    "deviceSelector": {"driver": DRIVER, "pool": "node-0", "device": "b"},
                    "taint": {**TAINT, "effect": "NoExecute"},
                },
            },
        ],
        [
            one("plain"),
            one("none"),
            one("tolerant", exactly(tolerations=TOLERANT)),
            one("wrong", exactly(tolerations=TOLERANT)),
            one("all", exactly(allocationMode="All", tolerations=[{"operator": "Exists"}])),
            one("any", exactly(tolerations=[{"operator": "Exists"}])),
        ],
    ),
    "devices that have to be made ready come last": (
        [
            resource_slice("a", {**device("a"), **ATTACHED}, node="node-0", pool="a"),
            resource_slice("b", {**device("b"), **ATTACHED}, pool="b", nodeSelector=NODE_0),
            resource_slice("c", device("c"), node="node-0", pool="c"),
        ],
        [one("first")],
    ),
    "alternatives by node": (
        [
            resource_slice("node-0", device("a", size=1), node="node-0"),
            resource_slice("node-1", device("b", size=2), node="node-1"),
        ],
        [one("first", alternatives(2, 1)), one("second", alternatives(2, 1)), one("none", alternatives(2, 1))],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("objects", "asks"), [pytest.param(*case, id=name) for name, case in CASES.items()])
def test_claims_get_the_same_devices_or_the_same_words(
    both: RealCluster, objects: list[Json], asks: list[Ask]
) -> None:
    ours = verdicts(both, OURS, objects, asks)
    theirs = verdicts(both, THEIRS, objects, asks)

    assert dict(zip((name for name, _ in asks), ours, strict=True)) == dict(
        zip((name for name, _ in asks), theirs, strict=True)
    )
