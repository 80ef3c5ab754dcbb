"""Draws requests: valid ones, damaged at random."""

import copy
import json
import random
import string
from typing import Any

import yarl

from tests.local.apiserver.manifests import (
    BUDGET,
    CONFIG_MAP,
    DEPLOYMENT,
    POD,
    SERVICE,
    TAINTED_NODE,
    WEBHOOK,
    WIDGET,
    WIDGETS,
)

NAMESPACE = "/api/v1/namespaces/default"
COLLECTIONS: list[tuple[str, dict[str, Any]]] = [
    (f"{NAMESPACE}/pods", POD),
    (f"{NAMESPACE}/services", SERVICE),
    (f"{NAMESPACE}/configmaps", CONFIG_MAP),
    ("/api/v1/nodes", TAINTED_NODE),
    ("/apis/apps/v1/namespaces/default/deployments", DEPLOYMENT),
    ("/apis/policy/v1/namespaces/default/poddisruptionbudgets", BUDGET),
    ("/apis/example.com/v1/namespaces/default/widgets", WIDGET),
    ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", WIDGETS),
    ("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", WEBHOOK),
    (
        "/apis/authorization.k8s.io/v1/subjectaccessreviews",
        {"spec": {"user": "a", "nonResourceAttributes": {"path": "/"}}},
    ),
    ("/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": "a"}}),
]
SUBRESOURCES = [
    *[""] * 20,
    *["/status"] * 5,
    "/scale",
    "/binding",
    "/eviction",
    "/log",
    "/exec",
    "/finalize",
    "/no",
]
METHODS = [*["GET"] * 6, *["POST"] * 14, *["PUT"] * 8, *["PATCH"] * 16, "DELETE", "HEAD", "OPTIONS", "TRACE"]
PATCHES = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
]
MEDIA = [
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "text/plain",
    "",
    ";;",
    *PATCHES,
]
ACCEPTS = [
    "application/json",
    "application/json;as=Table;v=v1;g=meta.k8s.io",
    "application/yaml",
    "text/html",
    "*/*",
    "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
    ",,;q=x",
    "application/json;as=;v=",
]
SCALARS: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    2**31,
    2**63,
    10**30,
    1e308,
    "",
    "x",
    "ü\u0000\ud83d\ude00",
    "a" * 300,
    "-1",
    "99999999999999999999",
    "2024-13-45T99:99:99Z",
    "50%",
    "1e999",
    [],
    {},
    [[]],
    [None],
    {"": ""},
    {"a": None},
    "/",
    "../..",
    "$(x)",
]
PARAMS = [
    "limit",
    "continue",
    "resourceVersion",
    "resourceVersionMatch",
    "labelSelector",
    "fieldSelector",
    "dryRun",
    "fieldManager",
    "fieldValidation",
    "force",
    "timeoutSeconds",
    "gracePeriodSeconds",
    "propagationPolicy",
    "orphanDependents",
    "sendInitialEvents",
    "allowWatchBookmarks",
    "includeObject",
    "pretty",
    "container",
    "tailLines",
    "nonsense",
]
VALUES = [
    "",
    "0",
    "1",
    "-1",
    "abc",
    "true",
    "false",
    "All",
    "99999999999999999999",
    "a=b",
    "a in (b,c)",
    "a in (",
    "!a",
    "metadata.name=p1",
    "a=b=c",
    ",",
    "Strict",
    "Orphan",
    "Foreground",
    "Exact",
    "NotOlderThan",
    "Object",
    "eyJ2IjoibWV0YSJ9",
    "%",
    "\u0000",
    "ü",
    "x" * 500,
]


class Fuzzer:
    """Draws requests; everything follows from the seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def request(self) -> tuple[str, str, dict[str, str], bytes | None]:
        """Method, path with query, headers and body."""
        rng = self.rng
        path, template = rng.choice(COLLECTIONS)
        method = rng.choice(METHODS)
        body = copy.deepcopy(template)
        if method not in ("POST", "GET") or rng.random() < 0.1:
            path += "/" + (
                str(body.get("metadata", {}).get("name", "x")) if rng.random() < 0.95 else self.word()
            )
            path += rng.choice(SUBRESOURCES)
        headers = {"Content-Type": rng.choice(MEDIA) if rng.random() < 0.1 else "application/json"}
        if rng.random() < 0.15:
            headers["Accept"] = rng.choice(ACCEPTS)
        if method == "PATCH":
            headers["Content-Type"] = rng.choice(PATCHES) if rng.random() < 0.9 else "application/json"
            data = self.patch(headers["Content-Type"], body)
        else:
            data = self.damaged(body)
        if rng.random() < 0.04:
            path = self.cut(path)
        return (
            method,
            path + self.query(headers["Content-Type"]),
            headers,
            None if method == "GET" else self.text(data),
        )

    def word(self) -> str:
        letters = string.ascii_lowercase + string.digits + "-.~%_:;=@/"
        return "".join(self.rng.choices(letters, k=self.rng.randint(1, 12)))

    def cut(self, path: str) -> str:
        position = self.rng.randrange(1, len(path))
        return path[:position] + self.rng.choice(["", "/", "//", "..", self.word()]) + path[position + 1 :]

    def query(self, media: str) -> str:
        chosen = {
            key: self.rng.choice(VALUES)
            for key in self.rng.choices(PARAMS, k=self.rng.choice([0, 0, 0, 0, 1, 2]))
        }
        if "apply" in media and self.rng.random() < 0.9:
            chosen["fieldManager"] = self.rng.choice(["one", "two"])
        return "?" + str(yarl.URL.build(query=chosen).raw_query_string) if chosen else ""

    def damaged(self, value: Any) -> Any:
        """The object with none to a few members replaced, removed, doubled or moved."""
        for _ in range(self.rng.choice([0, 0, 1, 1, 2, 4])):
            holders = [item for item in walk(value) if item]
            if not holders:
                break
            holder = self.rng.choice(holders)
            key = (
                self.rng.choice(list(holder)) if isinstance(holder, dict) else self.rng.randrange(len(holder))
            )
            self.change(holder, key, value)
        return value

    def change(self, holder: Any, key: Any, root: Any) -> None:
        rng = self.rng
        action = rng.randrange(5)
        if action == 0:
            del holder[key]
        elif action == 1:
            holder[key] = copy.deepcopy(rng.choice(SCALARS))
        elif action == 2:
            holder[key] = copy.deepcopy(rng.choice(list(walk(root))))
        elif action == 3:
            holder[key] = [holder[key]] * rng.choice([0, 1, 2]) if rng.random() < 0.5 else {"x": holder[key]}
        elif isinstance(holder, dict):
            holder[self.word()] = copy.deepcopy(rng.choice(SCALARS))
        else:
            holder.append(copy.deepcopy(rng.choice(SCALARS)))

    def patch(self, media: str, body: Any) -> Any:
        if media != "application/json-patch+json":
            return self.damaged(body)
        pointers = ["", "/", "/spec", "/metadata/labels/a", "/spec/containers/0/image", "/spec/containers/-", "/a~1b",
                    "/~", "/metadata", "/spec/containers/99999999999999999999", "spec", "/status"]  # fmt: skip
        operations = [
            {
                "op": self.rng.choice(["add", "remove", "replace", "move", "copy", "test", "fly"]),
                "path": self.rng.choice(pointers),
                "from": self.rng.choice(pointers),
                "value": self.rng.choice(SCALARS),
            }
            for _ in range(self.rng.randint(0, 3))
        ]
        return self.damaged(operations) if self.rng.random() < 0.3 else operations

    def text(self, value: Any) -> bytes:
        """JSON, at times with bytes changed."""
        data = bytearray(json.dumps(value).encode("utf-8", "replace"))
        if self.rng.random() < 0.1:
            for _ in range(self.rng.randint(1, 3)):
                data[self.rng.randrange(len(data))] = self.rng.randrange(256)
        if self.rng.random() < 0.02:
            data = bytearray(b"k8s\x00" + self.rng.randbytes(30))
        return bytes(data)


def walk(value: Any) -> list[Any]:
    """All objects and lists in a value."""
    found: list[Any] = []
    level = [value]
    while level:
        found += level
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, dict | list)
        ]
    return found
