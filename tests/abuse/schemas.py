"""Draws objects that a server's own OpenAPI documents describe, and damages them."""

import copy
import random
import string
from typing import Any

Json = dict[str, Any]

NAMES = [f"f{number}" for number in range(12)]
WORDS = ["a", "web", "app", "x-1", "A", "", "-", "ä", "a/b", "x.y/z", "0", "true", "a" * 64, "a\u0000b", "😀"]
BY_NAME: dict[str, list[Any]] = {
    "image": ["web", "web:1", ""],
    "name": [*NAMES, "main", "Main"],
    "namespace": ["fuzz-0", "fuzz-1"],
    "operator": ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Equal", ""],
    "effect": ["NoSchedule", "NoExecute", "PreferNoSchedule", "x"],
    "key": ["app", "kubernetes.io/hostname", "zone", ""],
    "topologyKey": ["kubernetes.io/hostname", "topology.kubernetes.io/zone", ""],
    "whenUnsatisfiable": ["DoNotSchedule", "ScheduleAnyway"],
    "restartPolicy": ["Always", "Never", "OnFailure"],
    "type": ["ClusterIP", "NodePort", "RollingUpdate", "Utilization", "Opaque", "Container", "x"],
    "schedule": ["* * * * *", "@daily", "61 * * * *", "x"],
    "protocol": ["TCP", "UDP", "x"],
    "scope": ["Namespaced", "Cluster"],
    "schedulerName": ["koord-scheduler", "default-scheduler", "nobody"],
    "quantity": ["1", "100m", "1Gi", "-1", "1e3", "x", "1.5Ki", ""],
}
ODD: list[Any] = [
    None, True, 0, -1, 1.5, 2**31, 2**63, 10**30, 1e308, "", "x", "ü\u0000😀", "a" * 300, "-1", "1e999", [], {}, [[]],
    [None], {"": ""}, {"a": None}, "2024-13-45T99:99:99Z", "50%", "../..", "$(x)", "{{", "%s%n", "\u202e",
]  # fmt: skip
DEPTH_MAX = 9
VALUES_MAX = 150
"""In one object: schemas of schemas would never end."""


def odd(rng: random.Random) -> Any:
    """A value that nobody expects; a copy, as whoever gets it may damage it further."""
    return copy.deepcopy(rng.choice(ODD))


class Shapes:
    """Objects of every kind that the documents describe."""

    def __init__(self, documents: list[Json], rng: random.Random) -> None:
        self.rng = rng
        self._left = VALUES_MAX
        self._schemas: dict[str, Json] = {}
        self.kinds: dict[tuple[str, str, str], Json] = {}
        for document in documents:
            for name, schema in document.get("components", {}).get("schemas", {}).items():
                self._schemas[f"#/components/schemas/{name}"] = schema
                for gvk in schema.get("x-kubernetes-group-version-kind", ()):
                    self.kinds[(gvk["group"], gvk["version"], gvk["kind"])] = schema

    def object(self, group: str, version: str, kind: str, name: str, namespace: str) -> Json:
        """An object of a kind, nearly always well-formed."""
        self._left = VALUES_MAX
        drawn = self._value(self.kinds.get((group, version, kind), {}), "", 0)
        obj = drawn if isinstance(drawn, dict) else {}
        obj["apiVersion"] = f"{group}/{version}" if group else version
        obj["kind"] = kind
        obj["metadata"] = {"name": name, "labels": {"app": self.rng.choice(["a", "b"])}}
        if namespace:
            obj["metadata"]["namespace"] = namespace
        if self.rng.random() < 0.1:
            obj["metadata"]["annotations"] = {self.rng.choice(WORDS): self.rng.choice(WORDS)}
        if self.rng.random() < 0.02:
            obj["metadata"]["finalizers"] = ["abuse.example.com/kept"]
        return obj

    def _value(self, schema: Json, name: str, depth: int) -> Any:
        rng = self.rng
        for _ in range(8):
            found = schema.get("$ref") or next(
                (each["$ref"] for each in schema.get("allOf", ()) if "$ref" in each), None
            )
            if found is None:
                break
            if found.endswith("resource.Quantity"):
                return rng.choice(BY_NAME["quantity"])
            schema = self._schemas.get(found, {})
        if "enum" in schema and rng.random() < 0.95:
            return rng.choice(schema["enum"])
        if schema.get("x-kubernetes-int-or-string") or schema.get("format") == "int-or-string":
            return rng.choice([1, "50%", "1", -1, "x"])
        self._left -= 1
        kind = schema.get("type", "object" if "properties" in schema else "")
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            size = rng.choice([0, 1, 1, 2]) if depth < DEPTH_MAX and self._left > 0 else 0
            return [self._value(schema.get("items", {}), name.rstrip("s"), depth + 1) for _ in range(size)]
        if kind == "string":
            return self._text(schema, name)
        if kind == "integer":
            return rng.choice([0, 1, 2, 3, 80, 8080, 100, -1, 2**31 - 1])
        if kind == "number":
            return rng.choice([0, 0.5, -1, 1e9])
        if kind == "boolean":
            return rng.random() < 0.5
        return rng.choice([{}, "x", 1, None])

    def _object(self, schema: Json, depth: int) -> Json:
        rng, required = self.rng, set(schema.get("required", ()))
        chance = 0.5 / (1 + depth / 2)
        found = {}
        for name, inner in schema.get("properties", {}).items():
            if name == "metadata" and not depth:
                continue
            is_wanted = name in required or (rng.random() < chance and self._left > 0)
            if is_wanted and depth < DEPTH_MAX:
                found[name] = self._value(inner, name, depth + 1)
        more = schema.get("additionalProperties")
        if isinstance(more, dict) and depth < DEPTH_MAX and self._left > 0:
            keys = ["cpu", "memory", "app", "kubernetes.io/batch-cpu", "x"]
            for key in rng.sample(keys, rng.choice([0, 1, 2])):
                found[key] = self._value(more, key, depth + 1)
        return found

    def _text(self, schema: Json, name: str) -> str:
        rng = self.rng
        if schema.get("format") == "date-time":
            return rng.choice(["2024-01-01T00:00:00Z", "2024-01-01T00:00:00.5+01:00", "x"])
        if schema.get("format") == "byte":
            return rng.choice(["YQ==", "", "*"])
        words = BY_NAME.get(name)
        if words is None or rng.random() < 0.1:
            words = WORDS if rng.random() < 0.2 else ["web", "a", "app"]
        return str(rng.choice(words))

    def damaged(self, value: Any) -> Any:
        """The value with none to a few members replaced, removed, doubled or moved."""
        rng = self.rng
        for _ in range(rng.choice([0, 0, 0, 1, 1, 2, 4])):
            holders = [each for each in _walk(value) if each]
            if not holders:
                break
            holder = rng.choice(holders)
            key: Any = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
            action = rng.randrange(5)
            if action == 0:
                del holder[key]
            elif action == 1:
                holder[key] = odd(rng)
            elif action == 2:
                holder[key] = copy.deepcopy(rng.choice(_walk(value)))
            elif action == 3:
                holder[key] = [holder[key]] * rng.choice([0, 1, 2])
            elif isinstance(holder, dict):
                holder["".join(rng.choices(string.printable, k=5))] = odd(rng)
            else:
                holder.append(odd(rng))
        return value


def _walk(value: Any) -> list[Any]:
    """All objects and lists in a value."""
    found, level = [], [value]
    while level:
        level = [each for each in level if isinstance(each, dict | list)]
        found += level
        level = [child for each in level for child in (each.values() if isinstance(each, dict) else each)]
    return found
