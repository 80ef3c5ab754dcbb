"""A healthy installation as a snapshot, and ways to break it: what tests of checks start from."""

import base64
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from koordinator import clock
from koordinator.api import labels, slo_config
from koordinator.api.admission import MutatingWebhookConfiguration, ValidatingWebhookConfiguration
from koordinator.api.apps import DaemonSet, Deployment
from koordinator.api.core import ConfigMap, Namespace, Node, Pod, Secret
from koordinator.api.decode import from_builtins
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.api.groups import Lease
from koordinator.api.meta import Object
from koordinator.api.node_metric import NodeMetric
from koordinator.api.slo import NodeSLO
from koordinator.doctor.checks.all import examine
from koordinator.doctor.finding import Finding, FindingSeverity
from koordinator.doctor.inquiries import AdmissionTest, AdmissionTrial, TrialOutcome
from koordinator.doctor.snapshot import KINDS, ClusterSnapshot, Listing
from koordinator.install import configs
from koordinator.install import objects as install
from koordinator.install.values import FailurePolicies, Values
from koordinator.manager.webhooks import certificates, configuration, table

TRIAL_POD = {"metadata": {"annotations": {labels.EXTENDED_RESOURCE_SPEC: "{}"}}}
NOW_S = 1_700_000_000.0
NAMESPACE = slo_config.CONFIG_NAMESPACE
SERVICE = configuration.WebhookService().name
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


def annotated(pod_: Pod, **annotations: str) -> Pod:
    """The pod with more annotations."""
    metadata = msgspec.structs.replace(
        pod_.metadata, annotations={**pod_.metadata.annotations, **annotations}
    )
    return msgspec.structs.replace(pod_, metadata=metadata)


def labelled(pod_: Pod, **labels: str) -> Pod:
    """The pod with more labels; `__` stands for the slash."""
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


@functools.cache
def certificate() -> certificates.CertificateSet:
    """The certificates of the webhooks, made an hour ago."""
    return certificates.renewed(None, f"{SERVICE}.{NAMESPACE}.svc", NOW_S - 3_600.0)


def webhook_configurations(
    *, ca_cert: bytes | None = None, policies: dict[str, str] | None = None, more: Sequence[str] = ()
) -> tuple[MutatingWebhookConfiguration, ValidatingWebhookConfiguration]:
    """Both configurations as a manager leaves them: webhooks that are on by default, and `more` paths."""
    gates = FeatureGates.of(Component.MANAGER)
    on = [path for path, needed in table.GATES_BY_PATH.items() if all(map(gates.is_on, needed))]
    mutating, validating = configuration.configurations(
        configuration.WebhookService(),
        ca_cert=certificate().ca_cert if ca_cert is None else ca_cert,
        paths=[*on, *more],
        failure_policies=configs.failure_policies(FailurePolicies()) | (policies or {}),
    )
    return (
        from_builtins(mutating, MutatingWebhookConfiguration),
        from_builtins(validating, ValidatingWebhookConfiguration),
    )


def secret(certs: certificates.CertificateSet) -> Secret:
    data = {key: base64.b64encode(value).decode() for key, value in certs.secret_data().items()}
    return decoded(Secret, {"data": data}, name="koordinator-webhook-certs", namespace=NAMESPACE)


_STATUSES: dict[str, dict[str, Any]] = {
    "CustomResourceDefinition": {"conditions": [{"type": "Established", "status": "True"}]},
    "Deployment": {"replicas": 2, "updatedReplicas": 2, "readyReplicas": 2},
    "DaemonSet": {
        "desiredNumberScheduled": 1,
        "currentNumberScheduled": 1,
        "updatedNumberScheduled": 1,
        "numberReady": 1,
    },
}


def healthy() -> dict[type[Object], list[Any]]:
    """What `koordinator install` brings, at work on one node: nothing is wrong. By kind."""
    objects: dict[type[Object], list[Any]] = {view: [] for view in KINDS}
    by_kind = {(view.resource.group, view.resource.kind): view for view in KINDS}
    for body in install.objects(Values()):
        view = by_kind.get((body["apiVersion"].rpartition("/")[0], body["kind"]))
        if view is not None:
            status = _STATUSES.get(body["kind"])
            objects[view].append(from_builtins({**body, **({"status": status} if status else {})}, view))
    for view, configured in zip(
        (MutatingWebhookConfiguration, ValidatingWebhookConfiguration), webhook_configurations(), strict=True
    ):
        objects[view] = [configured]
    objects[Secret] = [secret(certificate())]
    for name in ("default", "kube-system"):
        objects[Namespace].append(decoded(Namespace, {}, name=name))
    objects[Node] = [node()]
    objects[NodeMetric] = [node_metric()]
    objects[NodeSLO] = [decoded(NodeSLO, {}, name="node-0")]
    objects[Lease] = [lease("koordinator-manager", "manager-0_x"), lease("koord-scheduler", "scheduler-0_y")]
    objects[Pod] = [
        member("koord-manager", "manager-0"),
        member("koord-manager", "manager-1"),
        member("koord-scheduler", "scheduler-0"),
        member("koord-scheduler", "scheduler-1"),
        member("koordlet", "koordlet-0"),
        pod(),
    ]
    return objects


def changed(
    view: type[T], change: Callable[[T], T | None], objects: dict[type[Object], list[Any]] | None = None
) -> dict[type[Object], list[Any]]:
    """A healthy installation with each object of a kind replaced by what `change` says (None: left out)."""
    found = healthy() if objects is None else objects
    found[view] = [new for old in found[view] if (new := change(old)) is not None]
    return found


def snapshot(objects: dict[type[Object], list[Any]] | None = None, **members: Any) -> ClusterSnapshot:
    """A snapshot of these objects (of a healthy installation when none are given)."""
    found = healthy() if objects is None else objects
    trial = AdmissionTrial(outcome=TrialOutcome.CREATED, pod=TRIAL_POD)
    refused = AdmissionTrial(outcome=TrialOutcome.REFUSED, webhook="vpod.koordinator.sh")
    given = {
        "server_version": "v1.32.0",
        "admission": AdmissionTest("default", trial, refused),
        "access": [],
        **members,
    }
    return ClusterSnapshot(
        now_s=NOW_S,
        namespace=NAMESPACE,
        listings={view: Listing(items) for view, items in found.items()},
        **given,
    )


def findings(name: str, found: ClusterSnapshot) -> list[Finding]:
    """What one check says, without notices."""
    return [each for each in examine(found, [name]).findings if each.severity is not FindingSeverity.NOTICE]


def only(name: str, found: ClusterSnapshot) -> Finding:
    """The one thing that a check finds."""
    (each,) = findings(name, found)
    return each
