"""What is seen of a life after each step, without the names, times and addresses that chance draws."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from koordinator.cluster.events import COMBINED_PREFIX
from koordinator.cluster.protocol import Cluster

Json = dict[str, Any]
Seen = dict[str, list[Json]]
"""Objects by kind and steady name; several where only chance tells them apart."""

PATHS = {
    "Pod": "/api/v1/namespaces/{}/pods",
    "Service": "/api/v1/namespaces/{}/services",
    "Endpoints": "/api/v1/namespaces/{}/endpoints",
    "PersistentVolumeClaim": "/api/v1/namespaces/{}/persistentvolumeclaims",
    "ResourceQuota": "/api/v1/namespaces/{}/resourcequotas",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Event": "/api/v1/namespaces/{}/events",
    "ReplicaSet": "/apis/apps/v1/namespaces/{}/replicasets",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "StatefulSet": "/apis/apps/v1/namespaces/{}/statefulsets",
    "DaemonSet": "/apis/apps/v1/namespaces/{}/daemonsets",
    "ControllerRevision": "/apis/apps/v1/namespaces/{}/controllerrevisions",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "CronJob": "/apis/batch/v1/namespaces/{}/cronjobs",
    "EndpointSlice": "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "HorizontalPodAutoscaler": "/apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers",
    "ResourceClaim": "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims",
    "ElasticQuotaProfile": "/apis/quota.koordinator.sh/v1alpha1/namespaces/{}/elasticquotaprofiles",
    "ElasticQuota": "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/{}/elasticquotas",
    "Reservation": "/apis/scheduling.koordinator.sh/v1alpha1/reservations",
    "NodeMetric": "/apis/slo.koordinator.sh/v1alpha1/nodemetrics",
    "NodeSLO": "/apis/slo.koordinator.sh/v1alpha1/nodeslos",
    "PodMigrationJob": "/apis/scheduling.koordinator.sh/v1alpha1/podmigrationjobs",
    "Node": "/api/v1/nodes",
    "PersistentVolume": "/api/v1/persistentvolumes",
}
CLUSTER_WIDE = ("Node", "PersistentVolume")
"""Those with the label of the life belong to it."""
NAMING = ("Reservation", "PodMigrationJob")
"""Those that name the life's namespace belong to it."""
OF_NODES = ("NodeMetric", "NodeSLO")
"""Those that have the name of a node of the life belong to it."""
TIMES = ("endpoints.kubernetes.io/last-change-trigger-time",)
RACE = "the object has been modified"
"""An event with this tells that two controllers met."""
HASHED = ("ReplicaSet", "ControllerRevision")
_DRAWN = "bcdfghjklmnpqrstvwxz2456789"
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_SUFFIX = re.compile(rf"-[{_DRAWN}]{{5}}(?![a-z0-9-])")
_SELECTOR = re.compile(r" \(selector: .*? found to be unmanaged.*|were found to be unmanaged.*")
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_MINUTE = re.compile(r"-\d{8}(?!\d)")
_ADDRESS = re.compile(r"\b10\.\d+\.\d+\.\d+\b")
_DROPPED = ("uid", "resourceVersion", "managedFields", "creationTimestamp", "selfLink")


class Looker:
    """Looks at one namespace again and again; hashes of templates are remembered after their objects are gone.

    An exact look sees numbers in messages and the nodes of pods, too, where no chance is in them; one at what a
    manager has done the annotations of nodes.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        kinds: list[str],
        *,
        is_exact: bool = False,
        is_managed: bool = False,
        events: bool = True,
    ) -> None:
        self._cluster, self._namespace = cluster, namespace
        self._kinds = [*kinds, *(["Event"] if events else [])]
        self._is_exact, self._is_managed = is_exact, is_managed
        self._named = re.compile(rf"{namespace}(?!\d)")
        self._hashes: dict[str, str] = {}

    async def look(self) -> Seen:
        raw: dict[str, list[Json]] = {}
        for kind in {*self._kinds, *HASHED}:
            params = {"labelSelector": f"life={self._namespace}"} if kind in CLUSTER_WIDE else {}
            found = await self._cluster.request("GET", PATHS[kind].format(self._namespace), None, params)
            items = found["items"]
            if kind in NAMING:
                items = [one for one in items if self._named.search(json.dumps(one))]
            elif kind in OF_NODES:
                items = [one for one in items if one["metadata"]["name"].startswith(f"{self._namespace}-")]
            raw[kind] = items
        for kind, items in raw.items():
            for item in items:
                self._learn(kind, item)
        seen: Seen = defaultdict(list)
        for kind in self._kinds:
            for item in raw[kind]:
                if item["metadata"]["name"] == "kube-root-ca.crt" or self._is_chance(item):
                    continue
                name, body = self._steady(kind, item)
                if body not in seen[name] or kind != "Event":
                    seen[name].append(body)
        for bodies in seen.values():
            bodies.sort(key=lambda body: json.dumps(body, sort_keys=True))
        return dict(seen)

    def _is_chance(self, item: Json) -> bool:
        """Return whether an event tells that two controllers met, which of two budgets one has taken, or, where a
        scheduler is looked at, what is others' work: volumes, evictions that were called off."""
        by = (item.get("source") or {}).get("component")
        return (
            RACE in item.get("message", "")
            or item.get("reason") == "MultiplePodDisruptionBudgets"
            or (self._is_exact and "Cancelling deletion of Pod" in item.get("message", ""))
            or (self._is_exact and by == "persistentvolume-controller")
        )

    def _learn(self, kind: str, item: Json) -> None:
        labels = item["metadata"].get("labels", {})
        if kind == "ReplicaSet" and "pod-template-hash" in labels:
            self._hashes[labels["pod-template-hash"]] = _template_name(item["spec"]["template"])
        elif kind == "ControllerRevision":
            text = item["metadata"]["name"].rpartition("-")[2]
            self._hashes[text] = _template_name(item["data"]["spec"]["template"])

    def _steady(self, kind: str, item: Json) -> tuple[str, Json]:
        meta = item["metadata"]
        if kind == "Event":
            about = item["involvedObject"]
            item = {
                "about": f"{about['kind']} {about['name']}",
                **{name: item[name] for name in ("type", "reason")},
                "by": (item.get("source") or {}).get("component") or item.get("reportingComponent"),
                "message": self._message(item["message"]),
            }
        text = _TIME.sub("TIME", self._text(json.dumps(item)))
        body: Json = json.loads(text)
        if kind == "Event":
            return f"Event {body['about']} {body['reason']}", body
        for name in _DROPPED:
            body["metadata"].pop(name, None)
        body |= {"apiVersion": "", "kind": ""}
        name = self._text(meta["generateName"] + "*" if meta.get("generateName") else meta["name"])
        node = body["spec"].get("nodeName") if kind == "Pod" and self._is_exact else None
        annotations = body["metadata"].get("annotations", {}) if self._is_managed else {}
        body = _sorted_parts(kind, body)
        body["metadata"] |= {"annotations": {name: _parsed(text) for name, text in annotations.items()}}
        return f"{kind} {name}", _without_empty({**body, "node": node})

    def _message(self, text: str) -> str:
        text = _SELECTOR.sub("", self._text(text)).removeprefix(COMBINED_PREFIX)
        return (text if self._is_exact else re.sub(r"\d+", "N", text)).rstrip()

    def _text(self, text: str) -> str:
        for found, name in self._hashes.items():
            text = text.replace(found, name)
        text = _UID.sub("UID", text.replace(self._namespace, "LIFE"))
        return _ADDRESS.sub("ADDRESS", _SUFFIX.sub("-*", _MINUTE.sub("-MINUTE", text)))


def _template_name(template: Json) -> str:
    container = template["spec"]["containers"][0]
    return f"<{container['image']}>"


def _sorted_parts(kind: str, body: Json) -> Json:
    """Lists whose order means nothing in order."""
    for path in API_SERVERS:
        of, part, name = path.split(".")
        if of == kind:
            body.get(part, {}).pop(name, None)
    for owner in body["metadata"].get("ownerReferences", []):
        owner.pop("uid", None)
    status = body.get("status")
    if isinstance(status, dict) and isinstance(status.get("conditions"), list):
        status["conditions"].sort(key=lambda each: each["type"])
    if kind == "CronJob":
        for each in body["status"].get("active", []):
            each.pop("resourceVersion", None)
    if kind == "EndpointSlice":
        body["endpoints"] = _counted(body.get("endpoints") or [])
        body["ports"] = _counted(body.get("ports") or [])
    if kind == "Endpoints":
        for subset in body.get("subsets", []):
            for part in ("addresses", "notReadyAddresses"):
                if part in subset:
                    subset[part] = _counted(subset[part])
            subset["ports"] = _counted(subset.get("ports", []))
    if kind == "PersistentVolume":
        body["spec"].get("claimRef", {}).pop("resourceVersion", None)
    if kind == "Pod":
        _forget_requests(body)
    if kind == "Reservation":
        _forget_requests(body["spec"].get("template") or {})
    generation = body["metadata"].pop("generation", 0)  # how often it changed on the way
    if isinstance(status, dict) and "observedGeneration" in status:
        status["observedGeneration"] -= generation
    for name in TIMES:
        body["metadata"].get("annotations", {}).pop(name, None)
    if kind == "Node":
        body["spec"]["taints"] = _counted(body["spec"].get("taints", []))
        for path in ("status.daemonEndpoints", "metadata.annotations"):
            part, _, name = path.partition(".")
            body[part].pop(name, None)
    spec = body.get("spec", {})
    for template in (
        body,
        spec,
        spec.get("jobTemplate", {}).get("spec", {}),
        body.get("data", {}).get("spec", {}),
    ):
        template.get("template", {}).get("spec", {}).pop("enableServiceLinks", None)
    return body


def _parsed(text: str) -> Any:
    """What an annotation says, if it is JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


API_SERVERS = ("ControllerRevision.metadata.annotations",)
"""What the API server fills in, and other tests compare."""


def _forget_requests(pod: Json) -> None:
    """Drop what is no controller's work."""
    spec = pod.get("spec", {"containers": []})
    for name in ("nodeName", "serviceAccount", "enableServiceLinks"):
        spec.pop(name, None)
    for term in _required_terms(spec):
        for field in term.get("matchFields", []):
            field["values"] = ["NODE"]  # which one of several goes first is left to chance
    spec["volumes"] = [each for each in spec.get("volumes", []) if "kube-api-access" not in each["name"]]
    for container in spec["containers"]:
        mounts = container.get("volumeMounts", [])
        container["volumeMounts"] = [each for each in mounts if "kube-api-access" not in each["name"]]


def _required_terms(spec: Json) -> list[Json]:
    affinity = spec.get("affinity", {}).get("nodeAffinity", {})
    terms: list[Json] = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get(
        "nodeSelectorTerms", []
    )
    return terms


def _without_empty(value: Any) -> Any:
    """Members that are empty say nothing."""
    if isinstance(value, dict):
        parts = {key: _without_empty(part) for key, part in value.items()}
        return {key: part for key, part in parts.items() if part not in (None, "", {}, [])}
    return [_without_empty(each) for each in value] if isinstance(value, list) else value


def _counted(items: list[Json]) -> list[Json]:
    return sorted(items, key=lambda item: json.dumps(item, sort_keys=True))


def differences(theirs: Seen, ours: Seen) -> Iterator[str]:
    """One line for each fact that differs."""
    for name in sorted({*theirs, *ours}):
        yield from _between(name, theirs.get(name, []), ours.get(name, []))


def _between(name: str, theirs: list[Json], ours: list[Json]) -> Iterator[str]:
    only_ours = list(ours)
    only_theirs = []
    for each in theirs:
        if each in only_ours:
            only_ours.remove(each)
        else:
            only_theirs.append(each)
    for first, second in zip(only_theirs, only_ours, strict=False):
        for line in _paths("", first, second):
            yield f"{name}{line}"
    for each in only_theirs[len(only_ours) :]:
        yield f"{name}: only theirs: {_short(each)}"
    for each in only_ours[len(only_theirs) :]:
        yield f"{name}: only ours: {_short(each)}"


def _paths(path: str, theirs: Any, ours: Any) -> Iterator[str]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in sorted({*theirs, *ours}):
            yield from _paths(f"{path}.{key}", theirs.get(key), ours.get(key))
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for number, (first, second) in enumerate(zip(theirs, ours, strict=True)):
            yield from _paths(f"{path}[{number}]", first, second)
    elif theirs != ours:
        yield f"{path}: theirs {_short(theirs)}, ours {_short(ours)}"


def _short(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) < 700 else text[:700] + "…"


def kinds_of(seen: Iterable[Seen]) -> Counter[str]:
    """How many objects of each kind were seen."""
    return Counter(name.split()[0] for each in seen for name, bodies in each.items() for _ in bodies)
