"""A healthy installation as a snapshot, and ways to break it: what tests of checks start from."""

from collections.abc import Sequence
from typing import Any, TypeVar

from koordinator import clock
from koordinator.api import crd, defaults, kinds, slo_config
from koordinator.api.apps import DaemonSet, Deployment
from koordinator.api.coordination import Lease
from koordinator.api.core import ConfigMap, Namespace, Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.meta import Object
from koordinator.api.node_metric import NodeMetric
from koordinator.api.scheduling import PriorityClass
from koordinator.api.slo import NodeSLO
from koordinator.doctor.checks.all import examine
from koordinator.doctor.finding import Finding, Severity
from koordinator.doctor.snapshot import KINDS, Listing, RawDefinition, Snapshot

NOW_S = 1_700_000_000.0
NAMESPACE = slo_config.CONFIG_NAMESPACE
GIB = 2**30
IMAGE = "koordinator:0.1.0"

T = TypeVar("T", bound=Object)


def at(seconds_ago: float) -> str:
    """A time before now, as objects write it."""
    return clock.rfc3339_micro(NOW_S - seconds_ago)


def decoded(view: type[T], body: dict[str, Any], *, name: str = "", namespace: str = "") -> T:
    """An object from JSON; `name` and `namespace` fill in the metadata."""
    given = body.get("metadata", {})
    metadata = {"name": name, "namespace": namespace, "creationTimestamp": at(86_400), **given}
    return from_builtins({**body, "metadata": metadata}, view)


def node(name: str = "node-0", *, batch_milli: int | None = 4_000, **metadata: Any) -> Node:
    amounts: dict[str, Any] = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    if batch_milli is not None:
        amounts |= {"kubernetes.io/batch-cpu": str(batch_milli), "kubernetes.io/batch-memory": "8Gi"}
    body = {
        "metadata": {"name": name, "creationTimestamp": at(86_400), **metadata},
        "status": {
            "allocatable": amounts,
            "capacity": amounts,
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": at(5)}],
        },
    }
    return decoded(Node, body, name=name)


def node_metric(name: str = "node-0", *, seconds_ago: float | None = 20.0, cpu: str = "2") -> NodeMetric:
    body: dict[str, Any] = {}
    if seconds_ago is not None:
        usage = {"resources": {"cpu": cpu, "memory": "4Gi"}}
        body["status"] = {"updateTime": at(seconds_ago), "nodeMetric": {"nodeUsage": usage}}
    return decoded(NodeMetric, body, name=name)


def pod(
    name: str = "web-0",
    *,
    namespace: str = "default",
    node_name: str = "node-0",
    phase: str = "Running",
    requests: dict[str, str] | None = None,
    scheduler: str = "koord-scheduler",
    priority: int | None = None,
    seconds_ago: float = 3_600.0,
    **labels: str,
) -> Pod:
    resources = {"requests": requests or {}}
    body = {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "creationTimestamp": at(seconds_ago),
            "labels": {key.replace("__", "/").replace("_", "-"): value for key, value in labels.items()},
        },
        "spec": {
            "nodeName": node_name,
            "schedulerName": scheduler,
            "priority": priority,
            "containers": [{"name": "main", "image": "web", "resources": resources}],
        },
        "status": {"phase": phase},
    }
    return decoded(Pod, body)


def labelled(pod_: Pod, **labels: str) -> Pod:
    """The pod with more labels; `__` stands for the slash."""
    import msgspec

    more = {key.replace("__", "/"): value for key, value in labels.items()}
    metadata = msgspec.structs.replace(pod_.metadata, labels={**pod_.metadata.labels, **more})
    return msgspec.structs.replace(pod_, metadata=metadata)


def workload(
    component: str,
    *,
    replicas: int = 2,
    ready: int | None = None,
    image: str = IMAGE,
    args: Sequence[str] = (),
) -> Deployment:
    body = {
        "metadata": {"labels": {"koord-app": component}},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"koord-app": component}},
            "template": {
                "metadata": {"labels": {"koord-app": component}},
                "spec": {
                    "serviceAccountName": component,
                    "containers": [
                        {"name": "main", "image": image, "command": [component], "args": list(args)}
                    ],
                },
            },
        },
        "status": {
            "replicas": replicas,
            "updatedReplicas": replicas,
            "readyReplicas": replicas if ready is None else ready,
        },
    }
    return decoded(Deployment, body, name=component, namespace=NAMESPACE)


def koordlet(*, wanted: int = 1, ready: int = 1, image: str = IMAGE) -> DaemonSet:
    body = {
        "metadata": {"labels": {"koord-app": "koordlet"}},
        "spec": {
            "selector": {"matchLabels": {"koord-app": "koordlet"}},
            "template": {
                "metadata": {"labels": {"koord-app": "koordlet"}},
                "spec": {
                    "serviceAccountName": "koordlet",
                    "containers": [{"name": "koordlet", "image": image, "command": ["koordlet"]}],
                },
            },
        },
        "status": {
            "desiredNumberScheduled": wanted,
            "currentNumberScheduled": wanted,
            "updatedNumberScheduled": wanted,
            "numberReady": ready,
        },
    }
    return decoded(DaemonSet, body, name="koordlet", namespace=NAMESPACE)


def member(component: str, name: str, *, node_name: str = "node-0", ready: bool = True) -> Pod:
    """A pod of a component."""
    body = {
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"koord-app": component}},
        "spec": {
            "nodeName": node_name,
            "schedulerName": "default-scheduler",
            "containers": [{"name": "main"}],
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }
    return decoded(Pod, body)


def lease(name: str, holder: str, *, seconds_ago: float = 2.0, transitions: int = 0) -> Lease:
    spec = {
        "holderIdentity": holder,
        "leaseDurationSeconds": 15,
        "renewTime": at(seconds_ago),
        "leaseTransitions": transitions,
    }
    return decoded(Lease, {"spec": spec}, name=name, namespace=NAMESPACE)


def config(**keys: str) -> ConfigMap:
    """The manager's ConfigMap with these keys (`_` stands for `-`) instead of the installed ones."""
    data = {key.replace("_", "-"): text for key, text in keys.items()}
    return decoded(ConfigMap, {"data": data}, name=slo_config.CONFIG_NAME, namespace=NAMESPACE)


def definitions() -> list[RawDefinition]:
    """Our CRDs as an API server has them."""
    established = {"conditions": [{"type": "Established", "status": "True"}]}
    return [from_builtins({**body, "status": established}, RawDefinition) for body in crd.manifests()]


def healthy() -> dict[type[Object], list[Any]]:
    """Objects of an installation in which nothing is wrong, by kind."""
    objects: dict[type[Object], list[Any]] = {view: [] for view in KINDS}
    for body in defaults.objects():
        group = body["apiVersion"].rpartition("/")[0]
        resource = kinds.by_kind(group, body["kind"])
        assert resource is not None
        view = kinds.view_of(resource)
        objects.setdefault(view, []).append(from_builtins(body, view))
    for name in ("default", "kube-system"):
        objects[Namespace].append(decoded(Namespace, {}, name=name))
    objects[RawDefinition] = list(definitions())
    objects[Node] = [node()]
    objects[NodeMetric] = [node_metric()]
    objects[NodeSLO] = [decoded(NodeSLO, {}, name="node-0")]
    objects[Deployment] = [workload("koord-manager"), workload("koord-scheduler")]
    objects[DaemonSet] = [koordlet()]
    objects[Lease] = [lease("koordinator-manager", "manager-0_x"), lease("koord-scheduler", "scheduler-0_y")]
    objects[Pod] = [
        member("koord-manager", "manager-0"),
        member("koord-manager", "manager-1"),
        member("koord-scheduler", "scheduler-0"),
        member("koord-scheduler", "scheduler-1"),
        member("koordlet", "koordlet-0"),
        pod(),
    ]
    assert PriorityClass in objects
    return objects


def snapshot(objects: dict[type[Object], list[Any]] | None = None, **members: Any) -> Snapshot:
    """A snapshot of these objects (of a healthy installation when none are given)."""
    found = healthy() if objects is None else objects
    given = {"server_version": "v1.32.0", **members}
    return Snapshot(
        now_s=NOW_S,
        namespace=NAMESPACE,
        listings={view: Listing(items) for view, items in found.items()},
        **given,
    )


def findings(name: str, found: Snapshot) -> list[Finding]:
    """What one check says, without notices."""
    return [each for each in examine(found, [name]).findings if each.severity is not Severity.NOTICE]


def only(name: str, found: Snapshot) -> Finding:
    """The one thing that a check finds."""
    (each,) = findings(name, found)
    return each
