"""Say what questions about nodes and plain values must keep to, and draw some from nothing."""

import json
import random
from typing import Any

from koordinator.api import cpuset
from koordinator.koordlet.series import LATE_MS_MAX

Json = dict[str, Any]

_ASKED_OF_STEPS = {
    "add": ("value", "weight"),
    "subtract": ("value", "weight"),
    "merge": ("other",),
    "load": ("checkpoint",),
}
_ASKED_OF_SCHEMES = {
    "linear": ("max", "size", "epsilon"),
    "exponential": ("max", "first", "ratio", "epsilon"),
}


def _histogram(asked: Json) -> Json | None:
    """All that the layout and the steps need, and no more buckets than a histogram has."""
    options = asked["histogram"]
    needed = _ASKED_OF_SCHEMES[options["scheme"]]
    is_decaying = "halfLifeSeconds" in options
    if asked["op"] == "run" and (
        options["epsilon"] <= 0 or (is_decaying and options["halfLifeSeconds"] <= 0)
    ):
        return None
    if any(name not in options for name in needed) or not _are_steps(asked.get("steps", []), is_decaying):
        return None
    if options["scheme"] == "linear":
        is_small = options["size"] <= 0 or options["max"] / options["size"] < 10_000
    else:
        is_small = not 1 < options["ratio"] < 1.001
    return asked if is_small else None


def _are_steps(steps: list[Json], is_decaying: bool) -> bool:
    """Samples with time where they decay; no weight of a checkpoint is 0, as none is written."""
    for step in steps:
        is_sample = step["do"] in ("add", "subtract")
        if any(name not in step for name in _ASKED_OF_STEPS[step["do"]]) or (
            is_sample and is_decaying > ("at" in step)
        ):
            return False
        weights = (step.get("checkpoint") or {}).get("bucketWeights") or {}
        if 0 in weights.values() or not _are_steps(step.get("other", []), is_decaying):
            return False
    return True


def _kubelet(asked: Json) -> Json | None:
    """Each CPU once, each core within one NUMA node, each node within one socket; only CPUs that there are."""
    rows: dict[int, list[int]] = {}
    sockets: dict[int, int] = {}
    places: dict[int, tuple[int, int]] = {}
    for row in asked["topology"]:
        if len(row) == 4 and min(row) >= 0:
            cpu, core, socket, node = row
            if sockets.setdefault(node, socket) == socket and places.setdefault(core, (socket, node)) == (
                socket,
                node,
            ):
                rows.setdefault(cpu, row)
    if not rows:
        return None
    asked = {**asked, "topology": list(rows.values())}
    if asked["op"] == "take":
        asked["available"] = cpuset.text_of(cpuset.parse(asked["available"]) & rows.keys())
    return asked


def _series(asked: Json) -> Json | None:
    """Points that the store takes: pairs, at most as late as it allows, one at a time. One series is found: of
    several the original tells the time span of the last one only."""
    series, query = [], asked["query"]
    for each in asked["series"]:
        points: dict[int, float] = {}
        for pair in each["points"]:
            if (
                len(pair) == 2
                and 0 <= pair[0] == int(pair[0])
                and pair[0] >= max(points, default=0) - LATE_MS_MAX
            ):
                points.setdefault(int(pair[0]), pair[1])
        series.append({**each, "points": [list(point) for point in points.items()]})
    wanted = query.get("properties", {}).items()
    found = [
        each
        for each in series
        if each["kind"] == query["kind"] and wanted <= each.get("properties", {}).items()
    ]
    names = {each["kind"]: sorted(each.get("properties", {})) for each in series}
    is_known = all(names[each["kind"]] == sorted(each.get("properties", {})) for each in series)
    is_known &= not any(each.get("properties") for each in series if each["kind"].startswith("node_"))
    is_known = is_known and set(query.get("properties", {})) <= set(names.get(query["kind"], ()))
    return {**asked, "series": series} if len(found) < 2 and is_known else None


def _cgroup(asked: Json) -> Json | None:
    """A memory limit is `max` only on v2, and negative only on v1."""
    word = "max" if asked.get("version") == 1 else "-"
    return None if asked["op"] == "memory-limit" and word in asked["text"] else asked


def _pod_amounts(asked: Json) -> Json | None:
    """No negative amounts; limits of CPU without what a later release counts: those of whole pods, and sidecars'."""
    if asked["op"] == "batch" and '": "-' in json.dumps(asked):
        return None
    if asked["op"] != "cpuLimitMilli":
        return asked
    spec = {name: value for name, value in asked["pod"]["spec"].items() if name != "resources"}
    if "initContainers" in spec:
        spec["initContainers"] = [
            {name: value for name, value in container.items() if name != "restartPolicy"}
            for container in spec["initContainers"]
        ]
    return {**asked, "pod": {**asked["pod"], "spec": spec}}


MEND = {
    "histogram-percentile": _histogram,
    "kubelet-reserved-cpus": _kubelet,
    "series-aggregate": _series,
    "parse-cgroup": _cgroup,
    "api-pod-resources": _pod_amounts,
}


def _draw_topology(chance: random.Random) -> list[list[int]]:
    """A machine: sockets, NUMA nodes in them, cores, threads; CPUs numbered by core or by thread."""
    sockets, nodes = chance.choice((1, 1, 2, 2, 3, 4)), chance.choice((1, 1, 2, 4))
    cores, threads = chance.randint(1, 8), chance.choice((1, 2, 2))
    count = sockets * nodes * cores
    is_apart = chance.random() < 0.5
    rows = []
    for core in range(count):
        node = core // cores
        for thread in range(threads):
            cpu = thread * count + core if is_apart else core * threads + thread
            rows.append([cpu, core, node // nodes, node])
    if chance.random() < 0.4:  # some are offline, or have no second thread
        rows = chance.sample(rows, chance.randint(1, len(rows)))
    return sorted(rows)


def _draw_kubelet(chance: random.Random) -> Json:
    topology = _draw_topology(chance)
    cpus = [row[0] for row in topology]
    if chance.random() < 0.75:
        left = chance.sample(cpus, chance.randint(0, len(cpus)))
        available = cpus if chance.random() < 0.3 else sorted(left)
        count = chance.randint(0, min(len(cpus), len(available) + 1))
        text = ",".join(map(str, available))
        return {"op": "take", "topology": topology, "available": text, "count": count}
    config: Json = {"cpuManagerPolicy": chance.choice(("static", "static", "static", "none"))}
    if chance.random() < 0.2:
        config["reservedSystemCPUs"] = ",".join(map(str, chance.sample(cpus, chance.randint(0, len(cpus)))))
    for name in ("kubeReserved", "systemReserved"):
        if chance.random() < 0.7:
            config[name] = {
                "cpu": chance.choice(("0", "1", "500m", "1500m", "2", "3", "100m", "x", "-1", "7"))
            }
    return {"op": "reserved", "topology": topology, "kubeletConfig": config}


_KIND = "node_cpu_usage"
_AGGREGATIONS = ["avg", "p50", "P90", "P95", "p99", "last", "count"]


def _draw_series(chance: random.Random) -> Json:
    """One series of many points, some of them late."""
    count, at_ms = chance.choice((0, 1, 2, 3, 10, 20, 100, chance.randint(0, 250))), 1_000_000
    points: dict[int, float] = {}
    for _ in range(count):
        at_ms += chance.choice((1000, 1000, 1000, 60_000, 1))
        late_ms = chance.choice((0, 0, 0, 0, 500, 20_000))
        points.setdefault(
            at_ms - late_ms, chance.choice((chance.random(), float(chance.randint(0, 5)), -1.5))
        )
    start_ms = chance.choice((0, 1_000_000, 1_005_000))
    query = {"kind": _KIND, "startMs": start_ms, "endMs": chance.choice((at_ms, at_ms - 3000, 10**9))}
    series = [{"kind": _KIND, "points": [list(point) for point in points.items()]}]
    return {"series": series, "query": query, "aggregations": _AGGREGATIONS}


def _draw_histogram(chance: random.Random) -> Json:
    """Steps of all kinds over days, with the layouts of the peak prediction and small ones."""
    options = dict(
        chance.choice(
            (
                {"scheme": "linear", "max": 10.0, "size": 1.0, "epsilon": 1e-15},
                {"scheme": "exponential", "max": 1024.0, "first": 0.025, "ratio": 1.05, "epsilon": 1e-4},
                {"scheme": "exponential", "max": 2.0**41, "first": 5242880.0, "ratio": 1.05, "epsilon": 1e-4},
                {"scheme": "exponential", "max": 500.0, "first": 40.0, "ratio": 1.5, "epsilon": 0.01},
            )
        )
    )
    if chance.random() < 0.6:
        options["halfLifeSeconds"] = chance.choice((3600, 43200, 86400))
    is_plain = chance.random() < 0.5
    if not is_plain:
        options["epsilon"] = 1e-15
    steps = _draw_steps(chance, options["max"], chance.randint(0, 60), is_plain)
    shares = [0.0, 0.05, 0.5, 0.6, 0.9, 0.95, 0.98, 1.0, chance.random()]
    return {
        "op": "run",
        "histogram": options,
        "steps": steps,
        "percentiles": shares,
        "save": chance.random() < 0.6,
    }


def _draw_steps(chance: random.Random, top: float, count: int, is_plain: bool) -> list[Json]:
    steps: list[Json] = []
    at_s = 1_700_000_000
    for _ in range(count):
        at_s += chance.choice((60, 60, 3600, 86400, 86400 * 20, -3600, 86400 * 150))
        roll = chance.random()
        value = chance.choice((chance.random() * top, top, top * 2, 0.0, top * chance.random() ** 8))
        weight = 1.0 if is_plain else chance.choice((1.0, 0.5, 1e-3, 7.25))
        do = "add" if is_plain or roll < 0.8 else "subtract"
        if not is_plain and roll > 0.97:
            steps.append({"do": "merge", "other": _draw_steps(chance, top, chance.randint(0, 5), True)})
        else:
            steps.append({"do": do, "value": value, "weight": weight, "at": at_s})
    return steps


def _draw_cpu_text(chance: random.Random) -> Json:
    parts = (
        str(chance.randint(0, 300)),
        f"{chance.randint(0, 99)}-{chance.randint(0, 130)}",
        "",
        " 1",
        "+3",
        "-2",
        "1-2-3",
        "01",
    )
    text = ",".join(chance.choice(parts[:2] * 6 + parts) for _ in range(chance.randint(0, 5)))
    return {"op": chance.choice(("parse", "roundtrip")), "text": text}


def _draw_set_text(chance: random.Random) -> Json:
    if chance.random() < 0.5:
        return {**_draw_cpu_text(chance), "op": "parse"}
    return {"op": "equalText", "a": _draw_cpu_text(chance)["text"], "b": _draw_cpu_text(chance)["text"]}


_SUFFIXES = (
    "",
    "m",
    "u",
    "n",
    "k",
    "M",
    "G",
    "T",
    "P",
    "E",
    "Ki",
    "Mi",
    "Gi",
    "Ti",
    "Pi",
    "Ei",
    "e3",
    "E-3",
    "e+2",
    "K",
    "i",
    "e",
)


def _draw_quantity_text(chance: random.Random) -> str:
    """A text with a digit: those without are told apart on purpose (docs/deliberate-differences.md)."""
    whole = chance.choice(
        ("0", "00", str(chance.randint(0, 9)), str(chance.randint(0, 10**6)), str(chance.getrandbits(70)))
    )
    part = chance.choice(("", "", ".", f".{chance.randint(0, 999)}", f".{chance.randint(0, 10**11)}", ".5"))
    return chance.choice(("", "", "", "-", "+")) + whole + part + chance.choice(_SUFFIXES)


def _draw_quantity(chance: random.Random) -> Json:
    """Integer views of negative decimals are not asked: the original's are wrong where it keeps them as such."""
    if (op := chance.choice(("parse", "parse", "add", "sub", "cmp"))) == "parse":
        return {"op": op, "text": _draw_quantity_text(chance).lstrip("-")}
    return {"op": op, "a": _draw_quantity_text(chance), "b": _draw_quantity_text(chance)}


DRAW = {
    "kubelet-reserved-cpus": _draw_kubelet,
    "series-aggregate": _draw_series,
    "histogram-percentile": _draw_histogram,
    "api-cpuset-string": _draw_cpu_text,
    "cpuset": _draw_set_text,
    "api-quantity": _draw_quantity,
}

_LATER = "counted since a commit after release 1.8.0: "
OUTDATED = {
    "api-pod-resources": dict.fromkeys(
        ("lim-pod-level-only", "lim-pod-level-zero"), _LATER + "limits of whole pods"
    ),
}
