"""Define how one kind differs from the others when its objects are written. Most kinds do not: tables say the rest.

A strategy changes objects that it was given to keep (`obj` and `obj["metadata"]` are private copies of the
writer; anything deeper is shared and must be replaced, not changed). Everything here is synchronous.

Source: the strategies of the Kubernetes API server (which kinds have a generation, which accept an update without
resourceVersion, what a fresh status holds, whose dependents are orphaned by default, what is filled in).
"""

import random
from typing import Any

import msgspec

from koordinator.api.meta import Resource
from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors as fields
from koordinator.local.schema.builtin.defaults import NAME_LABEL, TEMPLATE_GENERATION
from koordinator.local.store import ObjectStore

STATUS_ONLY = ("labels", "annotations", "finalizers", "ownerReferences")
"""All that is anybody's of the metadata."""


class KindFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The rules for the life of one kind's objects.

    has_generation: `metadata.generation` counts changes outside metadata and status.
    creates_on_update: an update of what is not there creates it.
    blind_update: an update may leave `metadata.resourceVersion` out.
    keeps_status: a status sent with a create is kept (nodes register with theirs).
    fresh_status: the status of a new object, when the main resource does not write it.
    status_keeps: fields of the metadata that an update of the status leaves as they are.
    orphans_by_default: a delete that names no policy leaves the dependents alone.
    generation_stays: the generation of such objects is 1 for good.
    counts_labels: labels that changed count as a change, too.
    named_by_uid: a new object without any name gets one.
    immortal: names that cannot be deleted.
    """

    has_generation: bool = False
    creates_on_update: bool = False
    blind_update: bool = True
    keeps_status: bool = False
    fresh_status: dict[str, Any] | None = None
    status_keeps: tuple[str, ...] = ()
    orphans_by_default: bool = False
    generation_stays: bool = False
    counts_labels: bool = False
    named_by_uid: bool = False
    immortal: tuple[str, ...] = ()


PLAIN = KindFacts()
_ANYWAY = KindFacts(creates_on_update=True)
_GUARDED = KindFacts(blind_update=False)
_GUARDED_ANYWAY = KindFacts(blind_update=False, creates_on_update=True)
_GUARDED_COUNTED = KindFacts(blind_update=False, has_generation=True)
_REPLICATED = KindFacts(has_generation=True, fresh_status={"replicas": 0})
_BUDGET_STATUS = {"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0}
_DAEMON_STATUS = {
    "currentNumberScheduled": 0,
    "desiredNumberScheduled": 0,
    "numberMisscheduled": 0,
    "numberReady": 0,
}
_PENDING = {"phase": "Pending"}

CUSTOM = KindFacts(has_generation=True, blind_update=False, status_keeps=STATUS_ONLY)
"""Custom resources, and their definitions."""

FACTS: dict[str, KindFacts] = {
    "pods": KindFacts(has_generation=True, fresh_status=_PENDING, status_keeps=("ownerReferences",)),
    "nodes": KindFacts(keeps_status=True),
    "namespaces": KindFacts(immortal=("default", "kube-system", "kube-public")),
    **dict.fromkeys(("events", "events.events.k8s.io", "endpoints"), _ANYWAY),
    "limitranges": KindFacts(creates_on_update=True, named_by_uid=True),
    **{
        f"{name}.rbac.authorization.k8s.io": _ANYWAY
        for name in ("roles", "rolebindings", "clusterroles", "clusterrolebindings")
    },
    "services": KindFacts(creates_on_update=True, fresh_status={"loadBalancer": {}}),
    "persistentvolumes": KindFacts(fresh_status=_PENDING),
    "persistentvolumeclaims": KindFacts(fresh_status=_PENDING),
    "replicationcontrollers": KindFacts(
        has_generation=True, fresh_status={"replicas": 0}, orphans_by_default=True
    ),
    "resourcequotas": KindFacts(fresh_status={}),
    "deployments.apps": KindFacts(has_generation=True, fresh_status={}, status_keeps=("labels",)),
    "replicasets.apps": _REPLICATED,
    "statefulsets.apps": KindFacts(has_generation=True, fresh_status={"availableReplicas": 0, "replicas": 0}),
    "daemonsets.apps": KindFacts(has_generation=True, fresh_status=_DAEMON_STATUS),
    "jobs.batch": KindFacts(has_generation=True, fresh_status={}, orphans_by_default=True),
    "cronjobs.batch": KindFacts(has_generation=True, fresh_status={}),
    "horizontalpodautoscalers.autoscaling": KindFacts(
        fresh_status={"currentMetrics": None, "desiredReplicas": 0}
    ),
    "poddisruptionbudgets.policy": KindFacts(
        has_generation=True, blind_update=False, fresh_status=_BUDGET_STATUS
    ),
    "ingresses.networking.k8s.io": KindFacts(has_generation=True, fresh_status={"loadBalancer": {}}),
    "networkpolicies.networking.k8s.io": KindFacts(has_generation=True),
    "ingressclasses.networking.k8s.io": KindFacts(has_generation=True),
    "endpointslices.discovery.k8s.io": KindFacts(has_generation=True, counts_labels=True),
    "priorityclasses.scheduling.k8s.io": KindFacts(has_generation=True, generation_stays=True),
    "runtimeclasses.node.k8s.io": _GUARDED_ANYWAY,
    "leases.coordination.k8s.io": _GUARDED_ANYWAY,
    "csistoragecapacities.storage.k8s.io": _GUARDED,
    "csinodes.storage.k8s.io": _GUARDED,
    "csidrivers.storage.k8s.io": _GUARDED,
    "volumeattachments.storage.k8s.io": KindFacts(blind_update=False, status_keeps=STATUS_ONLY),
    "validatingadmissionpolicies.admissionregistration.k8s.io": KindFacts(
        blind_update=False, status_keeps=STATUS_ONLY
    ),
    "validatingadmissionpolicybindings.admissionregistration.k8s.io": _GUARDED,
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": _GUARDED_COUNTED,
    "validatingwebhookconfigurations.admissionregistration.k8s.io": _GUARDED_COUNTED,
    "customresourcedefinitions.apiextensions.k8s.io": CUSTOM,
    "apiservices.apiregistration.k8s.io": KindFacts(blind_update=False, status_keeps=STATUS_ONLY),
    "resourceclaims.resource.k8s.io": KindFacts(fresh_status={}, status_keeps=STATUS_ONLY),
    "deviceclasses.resource.k8s.io": KindFacts(has_generation=True),
    "resourceslices.resource.k8s.io": KindFacts(has_generation=True),
    "devicetaintrules.resource.k8s.io": KindFacts(
        has_generation=True, fresh_status={}, status_keeps=STATUS_ONLY
    ),
    "certificatesigningrequests.certificates.k8s.io": KindFacts(fresh_status={}, status_keeps=STATUS_ONLY),
}
"""By qualified name; kinds that are not listed are `PLAIN`."""


class StrategyContext:
    """The state that strategies may look at: the other objects, and the seeded generator. Without `checks` objects are
    right."""

    def __init__(self, store: ObjectStore, rng: random.Random, *, checks: bool) -> None:
        self.store = store
        self.rng = rng
        self.checks = checks


def kept_metadata(obj: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata after an update of a subresource: as it is, but for what guards the update and its owners."""
    sent = obj["metadata"]
    guards = {name: sent[name] for name in ("resourceVersion", "uid", "managedFields") if name in sent}
    return {**old["metadata"], **guards}


class RestStrategy:
    """The generic life of an object; subclasses override the steps in which their kind is special."""

    def __init__(self, resource: Resource, facts: KindFacts, has_status: bool) -> None:
        self.resource = resource
        self.facts = facts
        self.has_status = has_status

    def admit_create(self, obj: dict[str, Any], around: StrategyContext) -> None:
        """Built-in admission of a new object, before (and after) webhooks. Raises: ApiError."""

    def prepare_create(self, obj: dict[str, Any], around: StrategyContext, now: str) -> list[StatusCause]:
        """Fill in what the server decides; returns what is wrong. `now` is the creation time's text."""
        return []

    def prepare_update(
        self, obj: dict[str, Any], old: dict[str, Any], around: StrategyContext
    ) -> list[StatusCause]:
        """Carry over what an update of the main resource may not touch; returns what is wrong."""
        return []

    def is_over(self, obj: dict[str, Any]) -> bool:
        """Return whether an object being deleted may go, as far as this kind is concerned."""
        return True

    def grace_s(self, obj: dict[str, Any], asked_s: int | None) -> int | None:
        """Return seconds that the object may take to stop; None when it goes at once."""
        return None

    # Rules that follow from the facts alone

    def begin_status(self, obj: dict[str, Any]) -> None:
        """A new object's status is the server's, unless the kind brings its own."""
        if not self.has_status or self.facts.keeps_status:
            return
        if self.facts.fresh_status is None:
            obj.pop("status", None)
        else:
            obj["status"] = dict(self.facts.fresh_status)

    def keep_status(self, obj: dict[str, Any], old: dict[str, Any]) -> None:
        """An update of the main resource leaves the status alone."""
        if not self.has_status:
            return
        if "status" in old:
            obj["status"] = old["status"]
        else:
            obj.pop("status", None)

    def only_status(self, obj: dict[str, Any], old: dict[str, Any], now: str) -> dict[str, Any]:
        """Return the object that an update of the status asks for: everything else stays as it is."""
        meta = dict(obj["metadata"])
        for field in self.facts.status_keeps:
            meta.pop(field, None)
            if field in old["metadata"]:
                meta[field] = old["metadata"][field]
        merged = {**old, "metadata": meta}
        merged.pop("status", None)
        if "status" in obj:
            merged["status"] = obj["status"]
        return merged

    def only_part(
        self, subresource: str, obj: dict[str, Any], old: dict[str, Any]
    ) -> tuple[dict[str, Any], list[StatusCause]]:
        """Return the object that an update of another subresource asks for, and what is wrong with it.

        Only kinds that serve such a subresource are asked.
        """
        raise AssertionError(f"{self.resource.qualified}/{subresource} is served, and nobody writes it")

    def counts_as_change(self, obj: dict[str, Any], old: dict[str, Any]) -> bool:
        """Return whether the generation goes up: anything but metadata (and a separate status) changed."""
        if self.facts.generation_stays:
            return False
        if self.facts.counts_labels and obj["metadata"].get("labels") != old["metadata"].get("labels"):
            return True
        for key in {*obj, *old}:
            if key in ("metadata", "apiVersion", "kind") or (key == "status" and self.has_status):
                continue
            if obj.get(key) != old.get(key):
                return True
        return False


_SINCE = "lastPhaseTransitionTime"
NAMESPACE_FINALIZER = "kubernetes"
SERVICE_NETWORK = "10.96"  # the /16 from which services get addresses
NODE_PORTS = range(30_000, 32_768)

_JOB_UID_LABELS = ("batch.kubernetes.io/controller-uid", "controller-uid")
_JOB_NAME_LABELS = ("batch.kubernetes.io/job-name", "job-name")


class NamespaceStrategy(RestStrategy):
    """Namespaces stay until their controller has emptied them (`spec.finalizers`)."""

    def prepare_create(self, obj: dict[str, Any], around: StrategyContext, now: str) -> list[StatusCause]:
        meta = obj["metadata"]
        meta["labels"] = {**(meta.get("labels") or {}), NAME_LABEL: meta["name"]}
        spec = obj.get("spec") or {}
        kept = spec.get("finalizers") or []
        if NAMESPACE_FINALIZER not in kept:
            kept = [*kept, NAMESPACE_FINALIZER]
        obj["spec"] = {**spec, "finalizers": kept}
        obj["status"] = {"phase": "Active"}
        return []

    def prepare_update(
        self, obj: dict[str, Any], old: dict[str, Any], around: StrategyContext
    ) -> list[StatusCause]:
        obj["spec"] = old.get("spec", {})
        return []

    def is_over(self, obj: dict[str, Any]) -> bool:
        return not (obj.get("spec") or {}).get("finalizers")


class VolumeStrategy(RestStrategy):
    """PersistentVolumes tell since when they are in their phase."""

    def prepare_create(self, obj: dict[str, Any], around: StrategyContext, now: str) -> list[StatusCause]:
        obj["status"][_SINCE] = now
        return []

    def only_status(self, obj: dict[str, Any], old: dict[str, Any], now: str) -> dict[str, Any]:
        merged = super().only_status(obj, old, now)
        new, was = (dict(each.get("status") or {}) for each in (merged, old))
        since = was.get(_SINCE)
        if new.get("phase") == was.get("phase"):
            new.setdefault(_SINCE, since)
        elif new.get(_SINCE) in (None, since):
            new[_SINCE] = now
        return {**merged, "status": new}


class ServiceStrategy(RestStrategy):
    """Services get an address, and ports on the nodes where they want them."""

    def prepare_create(self, obj: dict[str, Any], around: StrategyContext, now: str) -> list[StatusCause]:
        spec = dict(obj.get("spec") or {})
        obj["spec"] = spec
        return self._allocate(spec, {}, around)

    def prepare_update(
        self, obj: dict[str, Any], old: dict[str, Any], around: StrategyContext
    ) -> list[StatusCause]:
        spec, was = dict(obj.get("spec") or {}), old.get("spec") or {}
        if spec.get("type") != "ExternalName" and not spec.get("clusterIP") and was.get("clusterIP"):
            spec["clusterIP"], spec["clusterIPs"] = was["clusterIP"], was.get("clusterIPs", [])
        _drop_of_other_types(spec, was)
        obj["spec"] = spec
        return self._allocate(spec, was, around)

    def _allocate(
        self, spec: dict[str, Any], was: dict[str, Any], around: StrategyContext
    ) -> list[StatusCause]:
        kind = spec.get("type") or "ClusterIP"
        if kind == "ExternalName":
            return []
        spec.setdefault("type", kind)
        spec.setdefault("ipFamilies", ["IPv4"])
        spec.setdefault("ipFamilyPolicy", "SingleStack")
        others = [record.obj.get("spec") or {} for record in around.store.table("services").records()]
        asked = spec.get("clusterIP") or ""
        taken = {other.get("clusterIP") for other in others}
        if not asked:
            asked = _free_address(taken)
        elif asked not in ("None", was.get("clusterIP")) and asked in taken:
            why = "failed to allocate IP " + asked + ": provided IP is already allocated"
            return [fields.invalid("spec.clusterIPs", [asked], why)]
        spec["clusterIP"], spec["clusterIPs"] = asked, [asked]
        if kind in ("NodePort", "LoadBalancer") and spec.get("allocateLoadBalancerNodePorts") is not False:
            return _give_node_ports(spec, was, others)
        return []


_WITH_NODE_PORTS = ("NodePort", "LoadBalancer")
_OF_TYPES = (
    ("externalTrafficPolicy", _WITH_NODE_PORTS),
    ("allocateLoadBalancerNodePorts", ("LoadBalancer",)),
    ("loadBalancerClass", ("LoadBalancer",)),
    ("clusterIP", ("ClusterIP", *_WITH_NODE_PORTS)),
    ("clusterIPs", ("ClusterIP", *_WITH_NODE_PORTS)),
)
"""Fields of Services, and the types that have them."""


def _drop_of_other_types(spec: dict[str, Any], was: dict[str, Any]) -> None:
    """Drop what a Service got for the type that it had, unless the client changed it along with the type."""
    new, old = spec.get("type"), was.get("type")
    for name, types in _OF_TYPES:
        is_reached = name == "externalTrafficPolicy" and new == "ClusterIP" and spec.get("externalIPs")
        if old in types and new not in types and not is_reached and spec.get(name) == was.get(name):
            spec.pop(name, None)
    ports, before = ([port.get("nodePort") for port in each.get("ports") or ()] for each in (spec, was))
    if old in _WITH_NODE_PORTS and new not in _WITH_NODE_PORTS and ports == before:
        spec["ports"] = [
            {k: v for k, v in port.items() if k != "nodePort"} for port in spec.get("ports") or ()
        ]


def _free_address(taken: set[Any]) -> str:
    # 10.96.0.1 is the API itself and .10 traditionally the DNS server.
    for number in range(11, 1 << 16):
        address = f"{SERVICE_NETWORK}.{number >> 8}.{number & 255}"
        if address not in taken and number & 255 not in (0, 255):
            return address
    raise AssertionError("65,000 services have used up the service network")


def _give_node_ports(
    spec: dict[str, Any], was: dict[str, Any], others: list[dict[str, Any]]
) -> list[StatusCause]:
    own = {port.get("nodePort") for port in was.get("ports") or ()}
    taken = {port.get("nodePort") for other in others for port in other.get("ports") or ()} - own
    earlier = {
        (port.get("protocol", "TCP"), port.get("port")): port.get("nodePort")
        for port in was.get("ports") or ()
    }
    ports = []
    for i, port in enumerate(spec.get("ports") or ()):
        wanted = port.get("nodePort") or earlier.get((port.get("protocol", "TCP"), port.get("port")))
        if wanted in taken and wanted:
            return [fields.invalid(f"spec.ports[{i}].nodePort", wanted, "provided port is already allocated")]
        if not wanted:
            wanted = next(number for number in NODE_PORTS if number not in taken and number not in own)
        taken.add(wanted)
        ports.append({**port, "nodePort": wanted})
    spec["ports"] = ports
    return []


class DaemonSetStrategy(RestStrategy):
    """DaemonSets count how often their template changed, in an annotation that users cannot set."""

    def prepare_create(self, obj: dict[str, Any], around: StrategyContext, now: str) -> list[StatusCause]:
        _count_templates(obj, _templates(obj) or 1)
        return []

    def prepare_update(
        self, obj: dict[str, Any], old: dict[str, Any], around: StrategyContext
    ) -> list[StatusCause]:
        is_other = obj["spec"].get("template") != old["spec"].get("template")
        _count_templates(obj, _templates(old) + is_other)
        return []


def _templates(obj: dict[str, Any]) -> int:
    """Return how many templates a DaemonSet has had; 0 when it does not say."""
    text = (obj["metadata"].get("annotations") or {}).get(TEMPLATE_GENERATION, "")
    return int(text) if text.isdecimal() else 0


def _count_templates(obj: dict[str, Any], count: int) -> None:
    meta = obj["metadata"]
    meta["annotations"] = {**(meta.get("annotations") or {}), TEMPLATE_GENERATION: str(count)}


class JobStrategy(RestStrategy):
    """Jobs select their pods by their own uid, unless the user chose a selector."""

    def prepare_create(self, obj: dict[str, Any], around: StrategyContext, now: str) -> list[StatusCause]:
        spec = dict(obj.get("spec") or {})
        obj["spec"] = spec
        if spec.get("manualSelector"):
            return []
        meta = obj["metadata"]
        template = dict(spec.get("template") or {})
        template_meta = dict(template.get("metadata") or {})
        given = template_meta.get("labels")
        labels = dict(given or {})
        labels.update(dict.fromkeys(_JOB_NAME_LABELS, meta["name"]))
        labels.update(dict.fromkeys(_JOB_UID_LABELS, meta["uid"]))
        template_meta["labels"] = labels
        template["metadata"] = template_meta
        spec["template"] = template
        # By default it has the labels of its pods; those of a generated name come too late for that.
        if not meta.get("labels") or (meta["labels"] is given and not meta.get("generateName")):
            meta["labels"] = labels
        if not spec.get("selector"):
            spec["selector"] = {"matchLabels": {_JOB_UID_LABELS[0]: meta["uid"]}}
        return []
