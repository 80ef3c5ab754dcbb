"""Questions about labels and annotations: texts that are nearly right."""

import json
import random
from collections.abc import Callable
from typing import Any

from tests.reference.api import whole
from tests.reference.compare import KEPT
from tests.reference.webhooks.draws import pod_transform

Json = dict[str, Any]

_VALUES = (
    *(
        "null",
        '""',
        '"x"',
        "0",
        "1",
        "-1",
        "80",
        "-0",
        "1.0",
        "1.5",
        "1e2",
        "1E-1",
        "true",
        "false",
        "[]",
        "{}",
    ),
    *(
        "2147483648",
        "-2147483649",
        "9223372036854775808",
        "1e200",
        '"80"',
        '"5m"',
        '"1Gi"',
        '"1h30m"',
        '"-1s"',
    ),
    *(
        '"None"',
        '"0-3"',
        '["a"]',
        "[null]",
        '{"a":1}',
        '{"cpu":"1"}',
        '{"cpu":null}',
        '"100m"',
        '" 1 "',
        "01",
    ),
    *('"2020-01-02T03:04:05Z"', '"\\u0041"', '"<&>"', "0.29", "1.005", "100000000000000000000"),
)
"""JSON, much of it of another type than what is wanted."""
_TEXTS = (
    *(
        "",
        " ",
        "0",
        "1",
        "-1",
        "+1",
        " 1",
        "1 ",
        "00",
        "008",
        "-08",
        "+10",
        "0x10",
        "1e3",
        "1E3",
        "1.0",
        "1.5",
    ),
    *("-0", "-0.0", ".5", "5.", "NaN", "nan", "Inf", "+Inf", "-inf", "infinity", "١"),
    *("2147483647", "2147483648", "-2147483648", "-2147483649", "9223372036854775807", "9223372036854775808"),
    *(
        "true",
        "false",
        "True",
        "TRUE",
        "t",
        "T",
        "f",
        "1",
        "yes",
        "null",
        "{}",
        "[]",
        '"a"',
        "[1]",
        '["a"]',
        '["a",null]',
    ),
    *(
        "1h",
        "1.5h",
        "-1m",
        "0s",
        "1d",
        "1h 2m",
        "1m1s",
        "1us",
        "1µs",
        "1μs",
        "1ns",
        "1h1",
        ".5s",
        "s",
        "9999999h",
        "+5s",
    ),
    *(
        "10G",
        "1Ki",
        "1.5Gi",
        "0.3",
        "80%",
        "0.29",
        "0.57",
        "1.005",
        "low",
        "Strict",
        "a:b,c:",
        "a:,b:c",
        " a : b ",
        ":b",
    ),
    *(
        "a,b",
        "default/g,default/h",
        '["ns/a","ns/b"]',
        "Honor",
        "FullPCPUsOnly",
        "none",
        "exclusive",
        "100000m",
        "5e-1",
    ),
)
"""Texts of labels and of annotations that hold no JSON."""


def _written(value: Any, chance: random.Random, odds: float) -> str:
    """Return the value as JSON in which some values are others, some names are written otherwise, some come twice.

    A name that comes twice says the same: the original also minds what the first one says, and mixes objects."""
    if chance.random() < odds:
        return chance.choice(_VALUES)
    blank = chance.choice(("", "", "", " ", "\n"))
    if isinstance(value, dict):
        members = []
        for name, member in value.items():
            if chance.random() < odds:
                continue
            members.append((_named(name, chance, odds), _written(member, chance, odds)))
            if chance.random() < odds and not isinstance(member, dict | list):
                members.append(members[-1])
        if chance.random() < odds:
            members.append(("other", chance.choice(_VALUES)))
        return "{" + ",".join(f"{blank}{json.dumps(name)}:{blank}{text}" for name, text in members) + "}"
    if isinstance(value, list):
        listed = [_written(member, chance, odds) for member in value if chance.random() > odds / 2]
        return f"[{f',{blank}'.join(listed)}]"
    return json.dumps(value)


def _named(name: str, chance: random.Random, odds: float) -> str:
    if chance.random() > odds:
        return name
    return chance.choice(
        (name.upper(), name.lower(), name.capitalize(), name.swapcase(), name.replace("s", "ſ"))
    )


def _changed(text: str, chance: random.Random) -> str:
    """The text of a label or an annotation, nearly as it was."""
    roll = chance.random()
    if text[:1] in ("{", "[") and roll < 0.85:
        try:
            text = _written(json.loads(text), chance, chance.choice((0.03, 0.1, 0.2)))
        except ValueError:
            return text
        return chance.choice(
            (text,) * 9 + (f" {text}\n", f"{text} x", text[:-1], text + text, f"\ufeff{text}")
        )
    if roll < 0.9:
        return chance.choice(_TEXTS)
    at = chance.randint(0, len(text))
    return text[:at] + chance.choice(' 0a"{}[],:-+.') + text[at + chance.choice((0, 1)) :]


class Texts:
    """Draws questions of an area in which texts differ from those of its cases."""

    def __init__(self, area: str, mend: Callable[[Json], Json | None]) -> None:
        self._mend = mend
        cases = json.loads((KEPT / f"{area}.json").read_text())["cases"]
        self._inputs = [case["input"] for case in cases]
        if area.startswith("api-annotations"):
            self._inputs += whole.questions(area.endswith("node")) * 2

    def __call__(self, chance: random.Random) -> Json | None:
        asked = json.loads(json.dumps(chance.choice(self._inputs)))
        for field in ("annotations", "labels"):
            for key, text in list(asked.get(field, {}).items()):
                asked[field][key] = _changed(text, chance)
        if isinstance(asked.get("old"), str):
            asked["old"] = _changed(asked["old"], chance)
        return self._mend(asked)


_AMOUNTS = (
    "0",
    "1",
    "-1",
    "3",
    "10",
    "1m",
    "999m",
    "1500m",
    "2.5",
    "100n",
    "1k",
    "1Ki",
    "1Gi",
    "1.5Gi",
    "7T",
    "0.1",
)
_NAMES = ("cpu", "memory", "koordinator.sh/gpu", "kubernetes.io/batch-cpu", "example.io/x")


def _amount(chance: random.Random) -> str:
    return chance.choice((*_AMOUNTS, f"{chance.randint(0, 10**6)}m", str(chance.randint(0, 10**12))))


def resource_lists(chance: random.Random) -> Json:
    """Two lists, or an amount and a factor."""
    ops = ("min", "equalIgnoringZero", "differs", "leqCompletely", "exactMatch", "multiply", "multiplyMilli")
    op = chance.choice(ops)
    number = chance.choice((0.0, 0.1, 0.333, 0.9, 1.0, 1.1, 1.5, 2.0, chance.random(), 3 * chance.random()))
    if op.startswith("multiply"):
        return {"op": op, "quantity": _amount(chance), "factor": number}
    names = chance.sample(_NAMES, chance.randint(1, 3))
    a = {name: _amount(chance) for name in names if chance.random() < 0.8}
    b = {name: chance.choice((_amount(chance), a.get(name, "0"))) for name in names if chance.random() < 0.8}
    asked: Json = {"op": op, "a": a, "b": b}
    if op == "differs":
        asked |= {"resource": chance.choice(names), "threshold": number}
    if op == "exactMatch":
        asked["names"] = chance.choice((None, [], names[:1], [*names, "other"]))
    return asked


_RESERVED = ("cpu", "memory", "x/y", "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory")


def normalisation(chance: random.Random) -> Json:
    """Pods and nodes as at admission, and what else has resources by names that were given up."""
    kind = chance.choice(("Pod", "Pod", "Node", "Device", "ElasticQuota"))
    if kind in ("Pod", "Node"):
        found: Json = {"kind": ""}
        while found["kind"] != kind.lower():
            found = pod_transform(chance)
        of = found["object"]
        node: Json = {"metadata": {"annotations": of.get("annotations") or {}}}
        node["status"] = {name: of.get(name) or {} for name in ("allocatable", "capacity")}
        if node["metadata"]["annotations"]:  # the original adds these to a node that has something reserved
            node["status"]["allocatable"] = dict.fromkeys(_RESERVED, "0") | node["status"]["allocatable"]
        return {"kind": kind, "gates": found["gates"], "object": node if kind == "Node" else of}
    domains = ("kubernetes.io", "koordinator.sh")
    resources = ("gpu-core", "gpu-memory", "gpu-memory-ratio", "batch-cpu", "batch-memory", "rdma", "fpga")
    names = [f"{domain}/{name}" for domain in domains for name in resources]

    def amounts() -> Json:
        return {name: _amount(chance) for name in chance.sample(names, chance.randint(0, 6))}

    if kind == "ElasticQuota":
        return {"kind": kind, "object": {"spec": {"max": amounts(), "min": amounts()}}}
    devices = [
        {"type": chance.choice(("gpu", "rdma", "fpga")), "minor": minor, "resources": amounts()}
        for minor in range(chance.randint(0, 3))
    ]
    return {"kind": kind, "object": {"spec": {"devices": devices}}}
