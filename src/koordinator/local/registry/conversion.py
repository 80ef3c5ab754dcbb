"""One stored object, shown in several API versions.

Custom resources (conversion strategy None) differ in `apiVersion` only. Events are stored in their core form;
`events.k8s.io/v1` has other names for the same fields.

HorizontalPodAutoscalers are stored as `autoscaling/v2`, shown as v1, and v1 is taken. v1 has one field for a CPU
target. Fields that v1 lacks travel in the annotations that the Kubernetes API server uses for this, so that a client
of v1 that writes back what it read loses nothing. Their values have the form of v2, where Kubernetes writes that of
its old alpha API.

Source: pkg/apis/autoscaling/v1/conversion.go in kubernetes/kubernetes.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from koordinator.api.meta import Resource
from koordinator.cluster.backend import ObjectRecord

CACHE_MAX = 1_024
"""Shown records kept; a record is usually read soon after it was written, by all watchers of its version."""

_EVENT_FIELDS = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
"""Core field → `events.k8s.io/v1` field; all others have the same name."""

_CORE_FIELDS = {new: old for old, new in _EVENT_FIELDS.items()}

Translate = Callable[[dict[str, Any]], dict[str, Any]]


class Translation(msgspec.Struct, frozen=True):
    """The conversion of an object besides its `apiVersion`; both functions leave their argument alone."""

    shown: Translate
    stored: Translate


def _renamed(names: dict[str, str]) -> Translate:
    return lambda obj: {names.get(field, field): value for field, value in obj.items()}


EVENTS = Translation(shown=_renamed(_EVENT_FIELDS), stored=_renamed(_CORE_FIELDS))


class Converter:
    """Translates between the stored form of a kind and what is served under `group/version`s."""

    def __init__(self, stored: Resource, translation: Translation | None = None) -> None:
        self._stored = stored
        self._translation = translation
        self._cache: dict[tuple[int, str], ObjectRecord] = {}

    def shown(self, record: ObjectRecord, resource: Resource) -> ObjectRecord:
        """Return the record in the served version `resource`; made once per version and record."""
        if record.obj["apiVersion"] == resource.api_version:
            return record
        key = (record.version, resource.version)
        found = self._cache.get(key) if record.version else None
        if found is None:
            obj = record.obj if self._translation is None else self._translation.shown(record.obj)
            found = ObjectRecord({**obj, "apiVersion": resource.api_version}, record.version)
            if len(self._cache) >= CACHE_MAX:
                self._cache.clear()
            self._cache[key] = found
        return found

    def stored(self, obj: dict[str, Any]) -> dict[str, Any]:
        """Return an object of a served version in its stored form."""
        if obj.get("apiVersion") == self._stored.api_version:
            return obj
        if self._translation is not None:
            obj = self._translation.stored(obj)
        return {**obj, "apiVersion": self._stored.api_version}


Json = dict[str, Any]

_PREFIX = "autoscaling.alpha.kubernetes.io/"
_SPEC_CARRIED = {"metrics": _PREFIX + "metrics", "behavior": _PREFIX + "behavior"}
_STATUS_CARRIED = {"currentMetrics": _PREFIX + "current-metrics", "conditions": _PREFIX + "conditions"}
_ANNOTATIONS = (*_SPEC_CARRIED.values(), *_STATUS_CARRIED.values())


def to_v1(obj: Json) -> Json:
    """Return a v2 object as v1 (without `apiVersion`)."""
    spec, status = dict(obj.get("spec") or {}), dict(obj.get("status") or {})
    target, rest = _cpu(spec.get("metrics"), "target")
    current, current_rest = _cpu(status.get("currentMetrics"), "current")
    carried = _packed({**spec, "metrics": rest}, _SPEC_CARRIED)
    carried |= _packed({**status, "currentMetrics": current_rest}, _STATUS_CARRIED)
    spec = _without(spec, _SPEC_CARRIED)
    status = _without(status, _STATUS_CARRIED)
    if target is not None:
        spec["targetCPUUtilizationPercentage"] = target
    if current is not None:
        status["currentCPUUtilizationPercentage"] = current
    status.setdefault("currentReplicas", 0)
    status.setdefault("desiredReplicas", 0)
    return {**obj, "metadata": _annotated(obj["metadata"], carried), "spec": spec, "status": status}


def to_v2(obj: Json) -> Json:
    """Return a v1 object as v2 (without `apiVersion`). Annotations that hold no JSON are dropped, as Kubernetes
    does."""
    annotations = obj["metadata"].get("annotations") or {}
    spec, status = dict(obj.get("spec") or {}), dict(obj.get("status") or {})
    target = spec.pop("targetCPUUtilizationPercentage", None)
    current = status.pop("currentCPUUtilizationPercentage", None)
    spec |= _unpacked(annotations, _SPEC_CARRIED)
    status |= _unpacked(annotations, _STATUS_CARRIED)
    if target is not None:
        aim = {"type": "Utilization", "averageUtilization": target}
        spec["metrics"] = [_of_cpu("target", aim), *spec.get("metrics", ())]
    if current is not None:
        measured = _of_cpu("current", {"averageUtilization": current})
        status["currentMetrics"] = [measured, *status.get("currentMetrics", ())]
    changed = {**obj, "metadata": _annotated(obj["metadata"], {}), "spec": spec}
    if status or "status" in obj:
        changed["status"] = status
    return changed


def _of_cpu(field: str, amounts: Json) -> Json:
    return {"type": "Resource", "resource": {"name": "cpu", field: amounts}}


def _cpu(metrics: list[Json] | None, field: str) -> tuple[int | None, list[Json]]:
    """Return the first CPU utilisation in percent, and the other metrics."""
    rest = list(metrics or ())
    for index, metric in enumerate(rest):
        of = metric.get("resource") or {}
        amounts = of.get(field) or {}
        percent = amounts.get("averageUtilization")
        if metric.get("type") == "Resource" and of.get("name") == "cpu" and percent is not None:
            return percent, rest[:index] + rest[index + 1 :]
    return None, rest


def _packed(part: Json, carried: dict[str, str]) -> dict[str, str]:
    return {
        name: msgspec.json.encode(part[field]).decode() for field, name in carried.items() if part.get(field)
    }


def _unpacked(annotations: dict[str, str], carried: dict[str, str]) -> Json:
    found: Json = {}
    for field, name in carried.items():
        kind = dict if field == "behavior" else list[dict[str, Any]]
        try:
            found[field] = msgspec.json.decode(annotations[name], type=kind)
        except (KeyError, msgspec.DecodeError):
            continue
    return found


def _without(part: Json, fields: dict[str, str]) -> Json:
    return {field: value for field, value in part.items() if field not in fields}


def _annotated(meta: Json, carried: dict[str, str]) -> Json:
    kept = {
        name: value for name, value in (meta.get("annotations") or {}).items() if name not in _ANNOTATIONS
    }
    changed = {field: value for field, value in meta.items() if field != "annotations"}
    return {**changed, "annotations": kept | carried} if kept or carried else changed


AUTOSCALERS = Translation(shown=to_v1, stored=to_v2)
