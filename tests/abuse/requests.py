"""Requests of every verb, for every resource, in every content type, as a client sends them that means no good."""

import json
import random
from collections import deque
from typing import Any, NamedTuple
from urllib.parse import quote

import yaml

from tests.abuse.schemas import NAMES, Json, Shapes, odd

NAMESPACES = ["fuzz-0", "fuzz-1", "fuzz-2"]
# One of them that is kept would rightly refuse what others write, or everything: tried without being stored.
DRY = frozenset({
    "mutatingwebhookconfigurations", "validatingwebhookconfigurations", "validatingadmissionpolicies",
    "validatingadmissionpolicybindings", "mutatingadmissionpolicies", "mutatingadmissionpolicybindings",
    "apiservices", "priorityclasses", "clustercolocationprofiles",
})  # fmt: skip
PATCHES = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
]
ACCEPTS = [
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "application/vnd.kubernetes.protobuf,application/json",
    "application/json;as=Table;v=v1;g=meta.k8s.io",
    "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
    "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
    "text/html",
    ",,;q=x",
]
PARAMS = {
    "limit": ["1", "2", "-1", "x", "99999999999999999999"],
    "continue": ["", "x", "eyJ2IjoibWV0YSJ9"],
    "resourceVersion": ["0", "1", "-1", "x", "99999999999999999999"],
    "resourceVersionMatch": ["Exact", "NotOlderThan", "x"],
    "labelSelector": ["app=a", "app in (a,b)", "!x", "a in (", "a=b=c", ",", "\u0000", "x" * 500],
    "fieldSelector": ["metadata.name=f1", "spec.nodeName=x", "a=b", "metadata.name!=f1", "=", ","],
    "dryRun": ["All", "x", ""],
    "fieldManager": ["me", "x" * 129, "ü", "\u0007", ""],
    "fieldValidation": ["Strict", "Warn", "Ignore", "x"],
    "force": ["true", "false", "x"],
    "gracePeriodSeconds": ["0", "1", "-1", "x"],
    "propagationPolicy": ["Orphan", "Foreground", "Background", "x"],
    "orphanDependents": ["true", "x"],
    "timeoutSeconds": ["1", "0", "-1", "x"],
    "sendInitialEvents": ["true", "false"],
    "allowWatchBookmarks": ["true"],
    "pretty": ["true", "x"],
    "nonsense": ["1"],
}
SUBRESOURCES = ["status", "scale", "binding", "eviction", "log", "exec", "attach", "proxy/x", "ephemeralcontainers",
                "resize", "token", "finalize", "approval", "no"]  # fmt: skip
AGENTS = [b"abuse/1", b"kubectl/v1.35", b"b\xff\xfe/1", b"x" * 300, b"", "ü\u00ad/1".encode(), b"/"]


class Resource(NamedTuple):
    """Something that the server lists in its discovery."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    verbs: frozenset[str]
    subresources: tuple[str, ...]

    @property
    def root(self) -> str:
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"


class Request(NamedTuple):
    """One request; `name` is what it would make, if anything."""

    method: str
    path: str
    headers: list[tuple[bytes, bytes]]
    body: bytes
    name: "Name | None" = None


class Name(NamedTuple):
    """An object: its resource, namespace and name."""

    resource: Resource
    namespace: str
    name: str


class Fuzzer:
    """Draws requests; all follow from the seed and from what the server said of itself."""

    def __init__(self, shapes: Shapes, resources: list[Resource], seed: int) -> None:
        self.rng = random.Random(seed)
        self._shapes = shapes
        self._resources = resources
        self.made: deque[Name] = deque(maxlen=400)
        """What the server said it has made lately."""

    def request(self) -> Request:
        rng = self.rng
        resource = rng.choice(self._resources)
        namespace = rng.choice(NAMESPACES) if resource.namespaced else ""
        name = rng.choice(NAMES)
        method = rng.choices(
            ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"], [20, 30, 12, 22, 10, 1, 1]
        )[0]
        if self.made and method != "POST" and rng.random() < 0.6:
            resource, namespace, name = rng.choice(self.made)
        base = f"{resource.root}/namespaces/{namespace}" if namespace else resource.root
        path = f"{base}/{resource.plural}"
        obj = self._shapes.object(resource.group, resource.version, resource.kind, name, namespace)
        is_one = method in ("PUT", "PATCH", "DELETE") or (method == "GET" and rng.random() < 0.5)
        if is_one:
            path += "/" + (name if rng.random() < 0.97 else quote(str(odd(rng)), safe=""))
            if rng.random() < 0.12:
                path += "/" + rng.choice([*resource.subresources * 3, *SUBRESOURCES])
        elif method == "POST" and rng.random() < 0.06:
            path += f"/{name}/" + rng.choice([*resource.subresources * 3, *SUBRESOURCES])
        params = self._params(method, is_one)
        headers = self._headers(method)
        body = b""
        if method in ("POST", "PUT", "PATCH") or (method == "DELETE" and rng.random() < 0.3):
            media, body = self._body(method, obj)
            headers.append((b"Content-Type", media.encode()))
            if "apply" in media and rng.random() < 0.9:
                params["fieldManager"] = rng.choice(["one", "two"])
        if method != "GET" and resource.plural in DRY:
            params["dryRun"] = "All"
        query = "&".join(f"{key}={quote(value, safe='')}" for key, value in params.items())
        if rng.random() < 0.01:
            path = self._cut(path)
        made = Name(resource, namespace, name) if method == "POST" and "dryRun" not in params else None
        return Request(method, path + (f"?{query}" if query else ""), headers, body, made)

    def _params(self, method: str, is_one: bool) -> dict[str, str]:
        rng = self.rng
        chosen = rng.sample(sorted(PARAMS), rng.choice([0, 0, 0, 0, 1, 2]))
        params = {key: rng.choice(PARAMS[key]) for key in chosen}
        if method == "GET" and not is_one and rng.random() < 0.03:
            params["watch"] = "true"
            params["timeoutSeconds"] = "1"
        return params

    def _headers(self, method: str) -> list[tuple[bytes, bytes]]:
        rng = self.rng
        headers = [(b"User-Agent", rng.choice(AGENTS) if rng.random() < 0.2 else b"abuse/1")]
        if rng.random() < 0.15:
            headers.append((b"Accept", rng.choice(ACCEPTS).encode()))
        if rng.random() < 0.01:
            headers.append((b"Impersonate-User", rng.choice([b"system:admin", b"\xff", b""])))
        if method != "GET" and rng.random() < 0.01:
            headers.append((b"Content-Encoding", rng.choice([b"gzip", b"deflate", b"identity", b"x"])))
        return headers

    def _body(self, method: str, obj: Json) -> tuple[str, bytes]:
        rng = self.rng
        if method == "DELETE":
            options = {
                "propagationPolicy": rng.choice(["Orphan", "x"]),
                "gracePeriodSeconds": odd(rng),
            }
            return "application/json", self._json(self._shapes.damaged(options))
        if method == "PATCH":
            media = rng.choice(PATCHES) if rng.random() < 0.95 else "application/json"
            if media == PATCHES[0]:
                return media, self._json(self._operations(obj))
            patch = self._shapes.damaged(obj if "apply" in media else self._part(obj))
            return media, self._yaml(patch) if "apply" in media and rng.random() < 0.3 else self._json(patch)
        draw = rng.random()
        if draw < 0.1:
            return "application/vnd.kubernetes.protobuf", self._protobuf(obj)
        damaged = self._shapes.damaged(obj)
        if draw < 0.2:
            return "application/yaml", self._yaml(damaged)
        if draw < 0.22:
            return rng.choice(["text/plain", "", ";;", "application/cbor"]), self._json(damaged)
        return "application/json", self._json(damaged)

    def _part(self, obj: Json) -> Json:
        """Some of an object, as merge patches are."""
        return {key: value for key, value in obj.items() if self.rng.random() < 0.5}

    def _operations(self, obj: Json) -> Any:
        rng = self.rng
        pointers = ["", "/", "/spec", "/metadata/labels/app", "/spec/containers/0/image", "/spec/template/spec",
                    "/a~1b", "/~", "/metadata", "/metadata/name", "/metadata/managedFields", "/spec/containers/-",
                    "spec", "/status", "/spec/x/99999999999999999999"]  # fmt: skip
        values = [obj.get("spec"), *(odd(rng) for _ in range(4))]
        operations = [
            {
                "op": rng.choice(["add", "add", "remove", "replace", "move", "copy", "test", "fly"]),
                "path": rng.choice(pointers),
                "from": rng.choice(pointers),
                "value": rng.choice(values),
            }
            for _ in range(rng.randint(0, 3))
        ]
        return self._shapes.damaged(operations) if rng.random() < 0.3 else operations

    def _json(self, value: Any) -> bytes:
        """JSON, at times with bytes changed or half of a surrogate pair."""
        rng = self.rng
        data = bytearray(json.dumps(value, ensure_ascii=rng.random() < 0.5).encode("utf-8", "replace"))
        if data and rng.random() < 0.04:
            for _ in range(rng.randint(1, 3)):
                data[rng.randrange(len(data))] = rng.randrange(256)
        if rng.random() < 0.02:
            return bytes(data).replace(b'"web"', b'"\\ud800"')
        return bytes(data)

    def _yaml(self, value: Any) -> bytes:
        return yaml.safe_dump(value, allow_unicode=self.rng.random() < 0.5).encode("utf-8", "replace")

    def _protobuf(self, obj: Json) -> bytes:
        """The envelope of Kubernetes around fields of any number and type."""
        kind = _field(1, obj["apiVersion"].encode()) + _field(2, obj["kind"].encode())
        meta = _field(1, _field(1, obj["metadata"]["name"].encode()))
        raw = (meta if self.rng.random() < 0.9 else b"") + self._message(4)
        data = bytearray(b"k8s\x00" + _field(1, kind) + _field(2, raw))
        if self.rng.random() < 0.2:
            data[self.rng.randrange(len(data))] = self.rng.randrange(256)
        return bytes(data)

    def _message(self, depth: int) -> bytes:
        rng = self.rng
        parts = []
        for _ in range(rng.randint(0, 4)):
            number = rng.randint(1, 12)
            draw = rng.random()
            if draw < 0.4 and depth:
                parts.append(_field(number, self._message(depth - 1)))
            elif draw < 0.7:
                parts.append(_field(number, rng.choice([b"a", b"web", b"", b"\xff", b"1", b"100m"])))
            elif draw < 0.95:
                parts.append(_varint(number << 3) + _varint(rng.choice([0, 1, 80, 2**31, 2**64 - 1])))
            else:
                parts.append(rng.randbytes(rng.randint(1, 6)))
        return b"".join(parts)

    def _cut(self, path: str) -> str:
        position = self.rng.randrange(1, len(path))
        return (
            path[:position] + self.rng.choice(["", "/", "//", "..", "%00", "%ff", "~"]) + path[position + 1 :]
        )


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content
