"""The Reservation that keeps room for a migrated pod's successor. Pure. Source: behaviour/descheduler 7.5.

Works on wire objects: the pod's template goes into the Reservation as it is, fields unknown to us included.
"""

from copy import deepcopy
from typing import Any

import msgspec

from koordinator.api import decode, labels
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.api.reservation import Reservation
from koordinator.descheduler.migration import jobs

Wire = dict[str, Any]


def reservation(job: PodMigrationJob, pod: Wire, now_s: float, without_claims: bool) -> Wire:
    """Metadata and spec of the Reservation to create for the pod of `job` (a wire object, left as it is).

    `without_claims`: leave out volumes that claims stand behind (gate DisablePVCReservation).
    Raises: ProtocolError when the job's ttl is no duration, or its template none of a Reservation.
    """
    options = job.spec.reservation_options
    given = deepcopy(options.template) if options is not None and options.template is not None else {}
    _check(given, job)
    metadata, spec = _member(given, "metadata"), _member(given, "spec")
    metadata["name"] = metadata.get("name") or job.metadata.uid
    own_labels = _member(metadata, "labels")
    own_labels[labels.CREATED_BY] = labels.DESCHEDULER
    # Which of several goes first: Unix milliseconds.
    own_labels[labels.RESERVATION_ORDER] = str(round(now_s * 1000))

    if not spec.get("template"):
        spec["template"] = {
            "metadata": deepcopy(pod.get("metadata") or {}),
            "spec": deepcopy(pod.get("spec") or {}),
        }
    _shape_template(_member(spec["template"], "spec"), pod, without_claims)
    if not spec.get("owners") and (owner := _owner(pod)):
        spec["owners"] = [owner]
    spec["allocateOnce"] = True
    if not spec.get("ttl") and not spec.get("expires") and jobs.ttl_s(job) > 0:
        spec["ttl"] = job.spec.ttl
    return {"metadata": metadata, "spec": spec}


def _check(given: Wire, job: PodMigrationJob) -> None:
    """Raises: ProtocolError. The schema of jobs lets anything be a template."""
    try:
        decode.from_builtins(decode.from_builtins(given, Reservation).spec.template, Pod)
    except msgspec.ValidationError as error:
        field = "spec.reservationOptions.template"
        raise ProtocolError(f"PodMigrationJob {job.metadata.name}", field, str(error)) from error


def bound_for(pod: Wire, node: str) -> Wire:
    """Return the template of a Reservation (for a job's `reservationOptions.template`) that keeps room for the pod's
    successor on one node and no other; `pod` is a wire object, left as it is."""
    metadata = {name: pod["metadata"][name] for name in _OF_POD if name in pod["metadata"]}
    template = deepcopy({"metadata": metadata, "spec": pod["spec"]})
    _require(template["spec"], {"key": "metadata.name", "operator": "In", "values": [node]})
    return {"spec": {"template": template}}


def target_of(job: PodMigrationJob) -> str:
    """Return the node to which a job moves its pod; empty while that is not known."""
    options = job.spec.reservation_options
    if job.status.node_name or options is None or options.template is None:
        return job.status.node_name
    spec: Any = options.template
    for name in _WAY_TO_TERMS:
        spec = spec.get(name) if isinstance(spec, dict) else None
    for term in spec if isinstance(spec, list) else ():
        for field in term.get("matchFields") or ():
            if (field.get("key"), field.get("operator")) == ("metadata.name", "In"):
                return str(field["values"][0])
    return ""


_WAY_TO_TERMS = (
    "spec", "template", "spec", "affinity", "nodeAffinity",
    "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms",
)  # fmt: skip
_OF_POD = ("name", "namespace", "labels", "annotations", "ownerReferences")


def _shape_template(spec: Wire, pod: Wire, without_claims: bool) -> None:
    spec.pop("nodeName", None)
    if node := (pod.get("spec") or {}).get("nodeName"):
        _require(spec, {"key": "metadata.name", "operator": "NotIn", "values": [node]})
    if without_claims and "volumes" in spec:
        claims = ("persistentVolumeClaim", "ephemeral")
        kept = [v for v in spec.pop("volumes") or [] if not any(claim in v for claim in claims)]
        if kept:
            spec["volumes"] = kept


def _require(spec: Wire, field: Wire) -> None:
    """Require a field of the node: terms are alternatives, so each one must say so."""
    affinity = _member(_member(spec, "affinity"), "nodeAffinity")
    required = _member(affinity, "requiredDuringSchedulingIgnoredDuringExecution")
    terms = required.get("nodeSelectorTerms") or [{}]
    for term in terms:
        term["matchFields"] = [*(term.get("matchFields") or []), field]
    required["nodeSelectorTerms"] = terms


def _owner(pod: Wire) -> Wire | None:
    """Return the pod itself while it is unscheduled, else whoever makes its successor; None for a bare pod."""
    metadata, status = pod.get("metadata") or {}, pod.get("status") or {}
    namespace = metadata.get("namespace", "")
    if status.get("phase") == "Pending" and any(
        one.get("type") == "PodScheduled" and one.get("status") == "False"
        for one in status.get("conditions") or []
    ):
        ref = {
            "kind": "Pod",
            "namespace": namespace,
            "name": metadata.get("name"),
            "uid": metadata.get("uid"),
        }
        return {"object": ref}
    owners = metadata.get("ownerReferences") or []
    controller = next((owner for owner in owners if owner.get("controller")), None)
    return {"controller": {**controller, "namespace": namespace}} if controller is not None else None


def _member(obj: Wire, name: str) -> Wire:
    """Return the object under `name`, made when absent or null."""
    if obj.get(name) is None:
        obj[name] = {}
    member: Wire = obj[name]
    return member
