"""Kinds for which the API server fills in a little: namespaces, services, jobs.

Source: their strategies in the API server.
"""

from typing import Any

from koordinator.cluster.errors import StatusCause
from koordinator.local.registry.strategies import RestStrategy, StrategyContext
from koordinator.local.schema import errors as fields

NAMESPACE_FINALIZER = "kubernetes"
NAME_LABEL = "kubernetes.io/metadata.name"
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
        meta = obj["metadata"]
        meta["labels"] = {**(meta.get("labels") or {}), NAME_LABEL: meta["name"]}
        obj["spec"] = old.get("spec", {})
        return []

    def is_over(self, obj: dict[str, Any]) -> bool:
        return not (obj.get("spec") or {}).get("finalizers")


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
        obj["spec"] = spec
        return self._allocate(spec, was, around)

    def _allocate(
        self, spec: dict[str, Any], was: dict[str, Any], around: StrategyContext
    ) -> list[StatusCause]:
        kind = spec.get("type") or "ClusterIP"
        if kind == "ExternalName":
            return []
        spec.setdefault("type", kind)
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
        labels = dict(template_meta.get("labels") or {})
        labels.update(dict.fromkeys(_JOB_NAME_LABELS, meta["name"]))
        labels.update(dict.fromkeys(_JOB_UID_LABELS, meta["uid"]))
        template_meta["labels"] = labels
        template["metadata"] = template_meta
        spec["template"] = template
        if not spec.get("selector"):
            spec["selector"] = {"matchLabels": {_JOB_UID_LABELS[0]: meta["uid"]}}
        return []
