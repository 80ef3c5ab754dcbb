"""The objects that a virtual node reads, and how it names things: whole pods, names in the lender, requests. Pure.
Source: behaviour/tidal 5."""

import hashlib
from typing import Any, ClassVar

import msgspec

from koordinator.api import labels, node_affinity, priority
from koordinator.api.core import Container, Node, Pod, PodSpec
from koordinator.api.meta import Object, Resource
from koordinator.api.priority import PriorityClass
from koordinator.api.tolerations import keeps_out

Json = dict[str, Any]

LENT_NAME_MAX = 240
"""Longest name of a lent pod: copies of what it refers to have 9 characters more, and a name may have 253."""
HOSTNAME_MAX = 63
_UID_DIGITS = 8

ENDED = ("Succeeded", "Failed")
"""Phases of pods that hold nothing any more."""


class PodDocument(Object, frozen=True, kw_only=True):
    """A pod with all that it says: what one cluster wrote is to be told to the other."""

    resource: ClassVar[Resource] = Pod.resource

    spec: Json = {}
    status: Json = {}

    @property
    def phase(self) -> str:
        return str(self.status.get("phase") or "")

    @property
    def has_ended(self) -> bool:
        return self.phase in ENDED

    @property
    def is_deleted(self) -> bool:
        """Return whether somebody asked for its end."""
        return self.metadata.deletion_timestamp is not None


class Lending(msgspec.Struct, frozen=True, kw_only=True):
    """The two clusters of a virtual node: `source` names the lender, `borrower` is the uid of the other's
    kube-system namespace, so that several may borrow from one."""

    source: str
    borrower: str
    scheduler: str = "koord-scheduler"

    @property
    def namespace(self) -> str:
        """Return the namespace of lent pods, in the lender."""
        return f"tidal-{self.source}"

    @property
    def selector(self) -> str:
        """Return the selector of all that was made in the lender for this borrower."""
        return f"{labels.VIRTUAL_NODE_BORROWER}={self.borrower}"


def lent_name(pod: PodDocument) -> str:
    """Return the name of a borrower's pod in the lender: `<namespace>-<name>-<eight digits of its uid>`."""
    meta = pod.metadata
    ending = f"-{meta.uid.replace('-', '')[:_UID_DIGITS]}"
    return f"{meta.namespace}-{meta.name}"[: LENT_NAME_MAX - len(ending)].rstrip("-.") + ending


def copy_name(lent: str, kind: str, name: str) -> str:
    """Return the name of the copy that the lent pod has of a ConfigMap or Secret."""
    digest = hashlib.sha256(f"{kind}/{name}".encode()).hexdigest()
    return f"{lent}-{digest[:_UID_DIGITS]}"


def hostname(name: str) -> str:
    """Return what the pod's containers take for the name of their machine, as a kubelet has it."""
    return name[:HOSTNAME_MAX].replace(".", "-").rstrip("-")


def borrowed_uid(pod: Object) -> str:
    """Return the uid of the borrower's pod that a lent pod stands for; empty for other pods."""
    return pod.metadata.annotations.get(labels.BORROWED_POD_UID, "")


def spec_of(pod: PodDocument) -> PodSpec:
    """Return the typed view of a spec. Raises: msgspec.ValidationError."""
    return msgspec.convert(pod.spec, PodSpec)


def slim(pod: Pod) -> Pod:
    """Return only what is read of the lender's pods: who they are, what they request, where they may be."""
    spec = pod.spec
    kept = msgspec.structs.replace(
        spec,
        containers=[_amounts_of(one) for one in spec.containers],
        init_containers=[_amounts_of(one) for one in spec.init_containers],
        volumes=[],
        topology_spread_constraints=[],
    )
    meta = pod.metadata
    known = {key: meta.annotations[key] for key in _ANNOTATIONS if key in meta.annotations}
    said = {key: meta.labels[key] for key in (*_LABELS, labels.VIRTUAL_NODE_BORROWER) if key in meta.labels}
    status = msgspec.structs.replace(
        pod.status,
        container_statuses=[],
        init_container_statuses=[],
        conditions=[one for one in pod.status.conditions if one.type == "PodScheduled"],
    )
    return msgspec.structs.replace(
        pod,
        metadata=msgspec.structs.replace(meta, labels=said, annotations=known, owner_references=[]),
        spec=kept,
        status=status,
    )


_ANNOTATIONS = (labels.BORROWED_POD, labels.BORROWED_POD_UID, labels.LENT_ON)
_LABELS = (labels.QOS_CLASS, labels.PRIORITY_CLASS)


def _amounts_of(container: Container) -> Container:
    return Container(
        name=container.name, resources=container.resources, restart_policy=container.restart_policy
    )


def is_online(pod: Pod) -> bool:
    """Return whether a pod of the lender is one for whose sake room is given back: all but batch and free."""
    return priority.default(pod) not in (PriorityClass.BATCH, PriorityClass.FREE)


def may_run(pod: Pod, node: Node) -> bool:
    """Return whether an online pod of the lender may be on a node at all, by selector, required affinity and taints."""
    is_open = not node.spec.unschedulable and not keeps_out(tuple(pod.spec.tolerations), node.spec.taints)
    return is_open and node_affinity.selects(pod.spec, node)
