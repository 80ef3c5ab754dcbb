"""Random cases: some ten requests each about one object of a built-in kind, in a namespace of its own.

`{case}` in a request is the name of the case, other words in braces are what earlier answers told (`sides.Memory`).
"""

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from koordinator.api.kinds import BUILT_IN
from koordinator.api.meta import Resource
from koordinator.local.schema import Catalog
from tests.real.requests import damage
from tests.real.requests.sides import Json, changed

OBJECTS: dict[str, Json] = yaml.safe_load(Path(__file__).with_name("objects.yaml").read_text())
NAMES = tuple(OBJECTS)
_RESOURCES = {each.kind: each for each in reversed(BUILT_IN)}
_CATALOG = Catalog(BUILT_IN)
_TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
_METADATA = {"Accept": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json"}
_STATUS_UNCHECKED = (
    "Service",
    "Namespace",
    "ResourceClaim",
    "ResourceQuota",
    "PersistentVolumeClaim",
    "PersistentVolume",
)
"""An update of the status of a Service creates it; of the others our server checks nothing."""
_SCALED = ("Deployment", "ReplicaSet", "StatefulSet")
_SELECTABLE = {
    "Pod": ("spec.nodeName=", "status.phase=Pending", "spec.restartPolicy!=Always"),
    "Node": ("spec.unschedulable=false",),
    "Secret": ("type=Opaque",),
    "Event": ("reason=Started", "involvedObject.name!=web"),
}
UNDAMAGED = (
    *(
        "ResourceSlice",
        "ResourceClaim",
        "ResourceClaimTemplate",
        "DeviceClass",
        "CSIDriver",
        "CSINode",
        "Endpoints",
    ),
    *("Namespace", "PersistentVolume", "VolumeAttachment", "PodTemplate", "RuntimeClass"),
)
"""Of these our server checks little (docs/local-api.md)."""
_FREQUENT = ("Pod", "Pod", "Pod", "Deployment", "Service", "Node", "ConfigMap", "Job")


def case_of(seed: int, kind: str = "") -> list[Json]:
    """The requests of a case."""
    rng = random.Random(f"requests {seed}")
    kind = kind or rng.choice((*NAMES, *_FREQUENT))
    return Case(rng, kind).steps


class Case:
    """Draws the requests about one object."""

    def __init__(self, rng: random.Random, kind: str) -> None:
        self.rng = rng
        self.kind = kind
        self.resource: Resource = _RESOURCES[kind]
        self.shape = _CATALOG.type_of(self.resource)
        root = f"/apis/{self.resource.group}" if self.resource.group else "/api"
        where = "/namespaces/{case}" if self.resource.namespaced else ""
        self.collection = f"{root}/{self.resource.version}{where}/{self.resource.plural}"
        self.name = "web" if self.resource.namespaced else "{case}-web"
        self.path = f"{self.collection}/{self.name}"
        share = 0 if kind in UNDAMAGED else rng.choice((0.1, 0.3, 0.6, 0.8))
        obj = damage.thinned(rng, copy.deepcopy(OBJECTS[kind]), share)
        self.object: Json = {"apiVersion": self.resource.api_version, "kind": kind, **obj}
        self.object["metadata"]["name"] = self.name
        account = {"metadata": {"name": "default"}, "automountServiceAccountToken": False}
        self.steps: list[Json] = [
            {"method": "POST", "path": "/api/v1/namespaces", "body": {"metadata": {"name": "{case}"}}},
            {"method": "POST", "path": "/api/v1/namespaces/{case}/serviceaccounts", "body": account},
        ]
        for _ in range(rng.choice((0, 1, 1, 2))):
            self.create(self._damaged(rng.choice((1, 1, 2))))
        self.create(self.object)
        others: list[Callable[[], None]] = [
            self.read,
            self.update,
            self.update,
            self.patch,
            self.patch,
            self.apply,
        ]
        others += [self.delete, self.status, self.collect, self.special]
        for _ in range(rng.randint(3, 8)):
            rng.choice(others)()
        self._ask("GET", self.path)

    def _ask(self, method: str, path: str, *, query: Json | None = None, **more: Any) -> None:
        self.steps.append({"method": method, "path": path, "query": query or {}, **more})

    def _damaged(self, count: int) -> Json:
        obj = copy.deepcopy(self.object)
        if self.kind in UNDAMAGED:
            return obj
        for _ in range(count):
            changed(obj, damage.change(self.rng, self.shape, obj))
        return obj

    def _options(self) -> Json:
        """Query of a write."""
        rng, query = self.rng, {}
        if rng.random() < 0.15:
            query["dryRun"] = "All"
        if rng.random() < 0.3:
            query["fieldManager"] = rng.choice(("alice", "bob", ""))
        if rng.random() < 0.4:
            query["fieldValidation"] = rng.choice(("Strict", "Warn", "Ignore"))
        return query

    def create(self, obj: Json) -> None:
        rng = self.rng
        if rng.random() < 0.1 and isinstance(obj.get("metadata"), dict):
            obj = copy.deepcopy(obj)
            obj["metadata"].pop("name", None)
            obj["metadata"]["generateName"] = rng.choice(("web-", "a" * 70))
        headers = rng.choice(({}, {}, {}, _TABLE, _METADATA))
        self._ask("POST", self.collection, query=self._options(), body=obj, headers=headers)

    def read(self) -> None:
        rng = self.rng
        headers = rng.choice(({}, _TABLE, _TABLE, _METADATA))
        if rng.random() < 0.4:
            self._ask("GET", self.path, headers=headers)
            return
        query = self._selection()
        if rng.random() < 0.15:
            query = {**query, "watch": "1", "resourceVersion": "{begin}", "timeoutSeconds": "1"}
            headers = {}
        self._ask("GET", self.collection, query=query, headers=headers)

    def _selection(self) -> Json:
        rng, query = self.rng, {}
        if not self.resource.namespaced:
            query["fieldSelector"] = "metadata.name={case}-web"
        elif rng.random() < 0.4:
            fields = ("metadata.name=web", "metadata.name!=web", "metadata.namespace={case}", "a=b", "a")
            query["fieldSelector"] = rng.choice((*fields, *_SELECTABLE.get(self.kind, ())))
        if rng.random() < 0.4:
            labels = (
                "app=web",
                "app!=web",
                "app in (web,x)",
                "!app",
                "app",
                "app notin (x)",
                "a=b=c",
                "tier in ()",
            )
            query["labelSelector"] = rng.choice(labels)
        if rng.random() < 0.2:
            query["limit"] = rng.choice(("1", "0", "-1", "x"))
        return query

    def update(self) -> None:
        """PUT of the object as it was last seen, with changes."""
        version = self.rng.choice((*["last"] * 7, "first", "none", "0"))
        self._ask("PUT", self.path, query=self._options(), seen=self._seen(version))

    def _seen(self, version: str = "last") -> Json:
        rng = self.rng
        count = 0 if self.kind in UNDAMAGED else rng.choice((0, 1, 1, 2))
        found = [damage.change(rng, self.shape, self.object) for _ in range(count)]
        if rng.random() < 0.3:
            found.append({"path": ["metadata", "labels", "new"], "value": rng.choice(("a", "b"))})
        return {"else": self.object, "changes": found, "version": version}

    def patch(self) -> None:
        rng = self.rng
        if self.kind in UNDAMAGED:
            return
        kind = rng.choice(("json", "merge", "strategic-merge"))
        headers = {"Content-Type": f"application/{kind}-patch+json"}
        subresource = rng.choice(("", "", "", "", "/status")) if self._has_status() else ""
        body = self._operations() if kind == "json" else self._partial(strategic=kind != "merge")
        self._ask("PATCH", self.path + subresource, query=self._options(), headers=headers, body=body)

    def _operations(self) -> list[Json]:
        rng, found = self.rng, []
        for _ in range(rng.choice((1, 1, 2))):
            made = damage.change(rng, self.shape, self.object)
            path = "/" + "/".join(str(part).replace("~", "~0").replace("/", "~1") for part in made["path"])
            if "value" not in made:
                found.append({"op": "remove", "path": path})
                continue
            operation = rng.choice(("add", "replace", "test", "copy", "move"))
            if operation in ("copy", "move"):
                found.append({"op": operation, "from": path, "path": "/metadata/labels/copied"})
            else:
                found.append({"op": operation, "path": path, "value": made["value"]})
        return found

    def _partial(self, *, strategic: bool) -> Json:
        """Some of the object, changed."""
        rng = self.rng
        obj = damage.thinned(rng, self.object, 0.6)
        for _ in range(rng.choice((1, 1, 2))):
            made = damage.change(rng, self.shape, obj)
            changed(obj, {"value": None, **made})
        for part in ("apiVersion", "kind"):
            if rng.random() < 0.8:
                obj.pop(part, None)
        if strategic and rng.random() < 0.3:
            at = rng.choice([path for path, at in damage.places(self.shape, obj) if at.fields] or [()])
            word = rng.choice(
                ({"$patch": "delete"}, {"$patch": "replace"}, {"$retainKeys": ["name"]}, {"$patch": "x"})
            )
            for key, value in word.items():
                changed(obj, {"path": [*at, key], "value": value})
        return obj

    def apply(self) -> None:
        rng = self.rng
        if self.kind == "Node":
            return  # owners differ by the taint that kube-apiserver adds
        obj = damage.thinned(rng, self.object, rng.choice((0.2, 0.6)), ("apiVersion", "kind"))
        for _ in range(0 if self.kind in UNDAMAGED else rng.choice((0, 1, 1, 2))):
            changed(obj, damage.change(rng, self.shape, obj))
        query = {**self._options(), "fieldManager": rng.choice(("alice", "alice", "bob", "bob", ""))}
        if rng.random() < 0.4:
            query["force"] = rng.choice(("true", "true", "false"))
        headers = {"Content-Type": "application/apply-patch+yaml"}
        self._ask("PATCH", self.path, query=query, headers=headers, body=obj)

    def _has_status(self) -> bool:
        return "status" in self.resource.subresources and self.kind not in _STATUS_UNCHECKED

    def status(self) -> None:
        if not self._has_status():
            return
        seen, rng = self._seen(), self.rng
        status = self.shape.fields["status"].type
        seen["changes"] = [
            {"path": ["status"], "value": damage.made(rng, status, "status")},
            *seen["changes"][:1],
        ]
        self._ask("PUT", f"{self.path}/status", query=self._options(), seen=seen)

    def delete(self) -> None:
        rng, body = self.rng, {}
        if self.kind.startswith("PersistentVolume") or self.kind == "Event":
            return  # finalizers of controllers that we do without
        if rng.random() < 0.3:
            body["gracePeriodSeconds"] = rng.choice((0, 1, 30, -1))
        if rng.random() < 0.4:
            words = ("Orphan", "Foreground", "Background", "x")
            body["propagationPolicy"] = rng.choice(words)
        if rng.random() < 0.3:
            body["preconditions"] = rng.choice(
                (
                    {"uid": "{uid}"},
                    {"uid": "x"},
                    {"resourceVersion": "{version}"},
                    {"resourceVersion": "{first}"},
                )
            )
        query = {"dryRun": "All"} if rng.random() < 0.5 else {}
        self._ask("DELETE", self.path, query=query, body=body or rng.choice((None, {})))

    def collect(self) -> None:
        """Delete or list all of the namespace; go on with a list that was cut."""
        rng = self.rng
        if rng.random() < 0.3 and self.resource.namespaced:
            self._ask("GET", self.collection, query={"limit": "1", "continue": "{continue}"})
        elif self.resource.namespaced and self.kind != "PersistentVolumeClaim" and rng.random() < 0.4:
            query = {**self._selection(), **({"dryRun": "All"} if rng.random() < 0.7 else {})}
            query.pop("limit", None)
            self._ask("DELETE", self.collection, query=query)
        else:
            self._ask("GET", self.collection, query=self._selection())

    def special(self) -> None:
        """What only some kinds have."""
        rng = self.rng
        if self.kind in _SCALED:
            self._scale()
        elif self.kind == "Pod":
            rng.choice((self._bind, self._evict, self._resize, self._debug))()

    def _scale(self) -> None:
        rng, path = self.rng, f"{self.path}/scale"
        replicas = rng.choice((0, 1, 3, -1, None))
        merge = {"Content-Type": "application/merge-patch+json"}
        body = {"metadata": {"name": "web", "namespace": "{case}"}, "spec": {"replicas": replicas}}
        match rng.randrange(3):
            case 0:
                self._ask("GET", path, headers=rng.choice(({}, _TABLE)))
            case 1:
                self._ask(
                    "PATCH", path, query=self._options(), headers=merge, body={"spec": {"replicas": replicas}}
                )
            case 2:
                self._ask("PUT", path, query=self._options(), body=body)

    def _bind(self) -> None:
        rng = self.rng
        target = rng.choice(
            ({"kind": "Node", "name": "one"}, {"name": "two"}, {}, {"kind": "Pod", "name": "x"})
        )
        meta = rng.choice(
            ({"name": "web"}, {"name": "web", "uid": "x"}, {"name": "x"}, {"annotations": {"a": "b"}})
        )
        query = {"dryRun": "All"} if rng.random() < 0.2 else {}
        self._ask("POST", f"{self.path}/binding", query=query, body={"metadata": meta, "target": target})

    def _evict(self) -> None:
        rng = self.rng
        options = rng.choice(
            ({}, {"gracePeriodSeconds": 0}, {"dryRun": ["All"]}, {"preconditions": {"uid": "x"}})
        )
        if rng.random() < 0.5:
            spec = {"selector": {"matchLabels": {"app": "web"}}, "minAvailable": rng.choice((0, 1))}
            path = "/apis/policy/v1/namespaces/{case}/poddisruptionbudgets"
            self._ask("POST", path, body={"metadata": {"name": "all"}, "spec": spec})
        meta = {"name": rng.choice(("web", "web", "x"))}
        self._ask("POST", f"{self.path}/eviction", body={"metadata": meta, "deleteOptions": options})

    def _resize(self) -> None:
        resources = damage.made(
            self.rng, self.shape.child("spec").child("containers").element.child("resources"), ""
        )
        names = ("requests", "limits")
        amounts = {name: {"cpu": self.rng.choice(("50m", "1", "2", "x"))} for name in names}
        change = {
            "path": ["spec", "containers", 0, "resources"],
            "value": self.rng.choice((resources, amounts)),
        }
        self._ask("PUT", f"{self.path}/resize", seen={"else": self.object, "changes": [change]})

    def _debug(self) -> None:
        container = {"name": self.rng.choice(("debug", "main", "A")), "image": "busybox"}
        change = {"path": ["spec", "ephemeralContainers"], "value": [container]}
        self._ask("PUT", f"{self.path}/ephemeralcontainers", seen={"else": self.object, "changes": [change]})
