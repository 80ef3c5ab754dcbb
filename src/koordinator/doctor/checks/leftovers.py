"""Is there anything that nobody acts on: objects of nodes that are gone, of the Go project that ours would fight with,
or of kinds that this version does not serve yet?"""

from collections.abc import Iterator

from koordinator.api import unready
from koordinator.api.admission import MutatingWebhookConfiguration, ValidatingWebhookConfiguration
from koordinator.api.apps import DaemonSet, Deployment
from koordinator.api.core import Node
from koordinator.api.device import Device
from koordinator.api.meta import Object
from koordinator.api.node_metric import NodeMetric
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.api.slo import NodeSLO
from koordinator.doctor.finding import Finding, FindingSeverity
from koordinator.doctor.snapshot import ClusterSnapshot
from koordinator.install.objects import PART_OF, PART_OF_VALUE
from koordinator.install.predecessor import DOCUMENT, LegacyObject, component_of, is_of_go
from koordinator.install.workloads import APP_LABEL

GRACE_S = 300.0
"""An agent that starts may write its objects before its node is seen."""
_BY_MANAGER = (NodeMetric, NodeSLO)
_BY_AGENT = (Device, NodeResourceTopology)


def check_nodes(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """The manager removes its own within seconds; nobody removes those of the node agent."""
    nodes = {each.metadata.name for each in snapshot.of(Node)}
    views: tuple[type[Object], ...] = (*_BY_MANAGER, *_BY_AGENT)
    for view in views:
        names = [
            each.metadata.name
            for each in snapshot.of(view)
            if each.metadata.name not in nodes and snapshot.age_s(each) > GRACE_S
        ]
        if not names:
            continue
        delete = f"kubectl delete {view.resource.plural} {' '.join(sorted(names)[:5])}"
        if view in _BY_MANAGER:
            yield Finding.warning(
                (view.resource.kind, names),
                "its node is gone",
                why="the manager deletes such objects: it does not run, or lacks the permission",
                do=("koordinator doctor --check leases --check access", delete),
            )
        else:
            yield Finding.warning(
                (view.resource.kind, names),
                "its node is gone",
                why="a new node of that name would start with the old one's devices and CPUs",
                do=(delete,),
            )


def check_predecessor(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Workloads beside ours are an error; alone they are a switch under way. Webhooks that fail closed refuse."""
    workloads = [*snapshot.of(Deployment), *snapshot.of(DaemonSet)]
    ours = {
        each.metadata.labels.get(APP_LABEL, each.metadata.name)
        for each in workloads
        if each.metadata.labels.get(PART_OF) == PART_OF_VALUE
    }
    for each in workloads:
        meta = each.metadata
        component = component_of(meta.name, meta.labels)
        if not component:
            continue
        legacy = LegacyObject(each.resource.kind, meta.namespace, meta.name, component)
        is_double = component in ours
        yield Finding.of(
            FindingSeverity.ERROR if is_double else FindingSeverity.NOTICE,
            each,
            "is the Go project's" + (", beside ours" if is_double else ""),
            why=legacy.why if is_double else "this component has not been migrated yet",
            do=(legacy.removal, f"{DOCUMENT} has the order of steps, and how to go back"),
        )
    configurations: list[MutatingWebhookConfiguration | ValidatingWebhookConfiguration] = [
        *snapshot.of(MutatingWebhookConfiguration),
        *snapshot.of(ValidatingWebhookConfiguration),
    ]
    for configuration in configurations:
        meta, webhooks = configuration.metadata, configuration.webhooks
        if not is_of_go(meta.name, meta.labels, (each.name for each in webhooks)):
            continue
        closed = [each.name for each in webhooks if each.failure_policy != "Ignore"]
        yield Finding.of(
            FindingSeverity.ERROR if closed else FindingSeverity.WARNING,
            configuration,
            "is the Go project's, and this project does not replace it",
            why=f"{len(closed)} of its webhooks have failurePolicy Fail: without their server, requests are refused"
            if closed
            else "objects are changed by two managers",
            do=(f"kubectl delete {configuration.resource.kind.lower()} {meta.name}", DOCUMENT),
            objects=closed,
        )


_REMEDY = ("wait for a version that does, and keep the Go component until then (docs/switch-from-go.md)",)


def check_unready(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """By the table of what does not run yet (`koordinator.api.unready`)."""
    for view, meaning in unready.KINDS.items():
        if names := [each.key for each in snapshot.of(view)]:
            yield Finding.warning(
                (view.resource.kind, names),
                "this version of Koordinator does not act on it yet",
                why=meaning,
                do=_REMEDY,
            )
