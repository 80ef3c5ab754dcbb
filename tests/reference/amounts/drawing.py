"""Draws questions about what nodes lend from nothing: odd amounts, many kinds of pods, several zones."""

import json
import random
from typing import Any

from koordinator.api import labels

Json = dict[str, Any]

_CPUS = ("0", "1", "2", "4", "0.1", "100m", "250m", "333m", "1500m", "7", "12.5", "1e1", "16")
_USED_CPUS = (*_CPUS, "3333333n", "1234567891n", "999999999n")
"""Requests have no parts of a thousandth: API servers round them up."""
_BYTES = ("0", "1G", "1Gi", "512Mi", "1.5Gi", "100M", "123456789", "1000000001", "2e9", "333333333m", "4Gi")
_WHOLE = ("0", "1", "7", "1Gi", "512Mi", "1.5Gi", "123456789", "2e9", "100k")
_PERCENTS = (0, 1, 10, 33, 50, 65, 67, 70, 99, 100, 120)
_POLICIES = ("usage", "request", "maxUsageRequest", None)
_TIERS = ("koord-prod", "koord-mid", "koord-batch", "koord-free", "")
_QOS = ("LSE", "LSR", "LS", "BE", "SYSTEM", "")
_PRIORITIES = (9999, 9000, 7500, 7000, 5999, 5000, 3500, 3000, 100, 0, -1, 10_000, None)


def _some(chance: random.Random, *members: tuple[str, Any]) -> Json:
    """Each member or not."""
    return {name: value for name, value in members if value is not None and chance.random() < 0.7}


def _amounts(chance: random.Random, scale: int = 1) -> Json:
    return _some(chance, ("cpu", _scaled(chance, _CPUS, scale)), ("memory", _scaled(chance, _BYTES, scale)))


def _scaled(chance: random.Random, texts: tuple[str, ...], scale: int) -> str:
    return chance.choice(texts) if scale == 1 else str(chance.randint(1, 9)) + "0" * scale


def _node(chance: random.Random) -> Json:
    cpu, memory = chance.randint(1, 200), chance.randint(1, 500)
    capacity = {"cpu": f"{cpu * 1000 + chance.choice((0, 1, 500, 333))}m", "memory": f"{memory}Gi"}
    allocatable = {
        "cpu": f"{cpu * 1000 - chance.choice((0, 1, 500, 800))}m",
        "memory": f"{memory * 1024 - chance.choice((0, 1, 700))}Mi",
    }
    reservation = {
        **_some(chance, ("resources", _amounts(chance))),
        **_some(chance, ("reservedCPUs", chance.choice(("0", "0-1", "0-3,6")))),
        **_some(chance, ("applyPolicy", chance.choice(("Default", "ReservedCPUsOnly", "")))),
    }
    annotations = {labels.NODE_RESERVATION: json.dumps(reservation)} if chance.random() < 0.5 else {}
    return {
        "metadata": {"name": "n", "annotations": annotations},
        "status": {
            "capacity": _some(chance, *capacity.items()) if chance.random() < 0.05 else capacity,
            "allocatable": _some(chance, *allocatable.items()) if chance.random() < 0.05 else allocatable,
        },
    }


def _container(chance: random.Random) -> Json:
    requests, limits = _amounts(chance), _amounts(chance)
    for name, suffix in (("kubernetes.io/batch-cpu", ""), ("kubernetes.io/batch-memory", "Mi")):
        if chance.random() < 0.1:
            requests[name] = limits[name] = f"{chance.randint(1, 4000)}{suffix}"
    return {"name": f"c{chance.randrange(1000)}", "resources": {"requests": requests, "limits": limits}}


def _pod(chance: random.Random, index: int, zones: int) -> Json:
    found = _some(
        chance, (labels.QOS_CLASS, chance.choice(_QOS)), (labels.PRIORITY_CLASS, chance.choice(_TIERS))
    )
    annotations = {}
    if zones and chance.random() < 0.5:
        nodes = [{"node": chance.randint(-1, zones)} for _ in range(chance.randint(0, 3))]
        annotations[labels.RESOURCE_STATUS] = json.dumps({"numaNodeResources": nodes})
    spec = {
        "nodeName": "n",
        "containers": [_container(chance) for _ in range(chance.choice((1, 1, 2, 3)))],
        **_some(chance, ("priority", chance.choice(_PRIORITIES))),
        **_some(chance, ("priorityClassName", chance.choice(("koord-prod", "koord-batch", "other")))),
    }
    if chance.random() < 0.2:
        sidecar = chance.choice(({}, {"restartPolicy": "Always"}))
        spec["initContainers"] = [{**_container(chance), **sidecar} for _ in range(chance.randint(1, 3))]
    if chance.random() < 0.2:
        spec["overhead"] = _amounts(chance)
    elif chance.random() < 0.1:
        spec["resources"] = {"requests": _amounts(chance), "limits": _amounts(chance)}
    phase = chance.choice(("Running", "Running", "Running", "Pending", "Succeeded", "Failed", "Unknown"))
    metadata = {"name": f"p{index}", "namespace": "d", "labels": found, "annotations": annotations}
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase}}


def _report(chance: random.Random, pods: int) -> Json:
    def usage() -> Json:
        return {"resources": {"cpu": chance.choice(_USED_CPUS), "memory": chance.choice(_BYTES)}}

    reported = [index for index in range(pods + 2) if chance.random() < 0.7]
    return {
        "nodeMetric": _some(chance, ("nodeUsage", usage()), ("systemUsage", usage())),
        "podsMetric": [
            {
                "name": f"p{index}",
                "namespace": "d",
                "podUsage": usage(),
                **_some(chance, ("priority", chance.choice(_TIERS)), ("qos", chance.choice(_QOS))),
            }
            for index in reported
        ],
        **_some(
            chance,
            (
                "hostApplicationMetric",
                [{"name": "h", "usage": usage(), "priority": tier} for tier in chance.sample(_TIERS, 2)],
            ),
            ("prodReclaimableMetric", {"resource": usage()}),
        ),
    }


def _strategy(chance: random.Random) -> Json:
    def percent() -> int:
        return chance.choice((*_PERCENTS, chance.randint(0, 110)))

    return {
        "cpuReclaimThresholdPercent": percent(),
        "memoryReclaimThresholdPercent": percent(),
        "degradeTimeMinutes": chance.choice((1, 5, 15)),
        **_some(
            chance,
            ("cpuCalculatePolicy", chance.choice(_POLICIES)),
            ("memoryCalculatePolicy", chance.choice(_POLICIES)),
            ("midCPUThresholdPercent", percent()),
            ("midMemoryThresholdPercent", percent()),
            ("midUnallocatedPercent", percent()),
            ("midStaticCPUReservedPercent", percent()),
            ("midStaticMemoryReservedPercent", percent()),
            ("midReclaimMode", chance.choice(("static", "dynamic", "", None))),
        ),
        **({"batchCPUThresholdPercent": percent()} if chance.random() < 0.3 else {}),
        **({"batchMemoryThresholdPercent": percent()} if chance.random() < 0.3 else {}),
    }


def _calculation(chance: random.Random, zones: int) -> Json:
    pods = chance.choice((0, 1, 2, 3, 8))
    return {
        "op": "calculate",
        "strategy": _strategy(chance),
        "node": _node(chance),
        "pods": [_pod(chance, index, zones) for index in range(pods)],
        "nodeMetricStatus": _report(chance, pods),
        "nodeMetricAgeSeconds": chance.choice((0, 10, 59, 60, 61, 300, 301, 900, 901, None))
        if chance.random() < 0.2
        else 0,
    }


def _zone(chance: random.Random, index: int) -> Json:
    resources = []
    for name, texts in (("cpu", _CPUS), ("memory", _BYTES)):
        if chance.random() < 0.95:
            unit = "" if name == "cpu" else "Gi"
            whole = chance.choice(texts) if chance.random() < 0.3 else f"{chance.randint(1, 99)}{unit}"
            resources.append({"name": name, **dict.fromkeys(("capacity", "allocatable", "available"), whole)})
    return {"name": f"node-{index}", "type": "Node", "resources": resources}


def batch(chance: random.Random) -> Json:
    match chance.choice(
        ("calculate", "calculate", "calculate", "prepare", "needSync", "updateZones", "divide")
    ):
        case "calculate":
            zones = chance.choice((0, 1, 2, 3, 4, 7))
            asked = _calculation(chance, zones)
            return {**asked, "nrtZones": [_zone(chance, index) for index in range(zones)]} if zones else asked
        case "prepare":
            return _preparation(chance)
        case "needSync":
            return _sync(chance)
        case "updateZones":
            return _zones_update(chance)
    amount = f"{chance.randint(0, 10**7)}{chance.choice(('', 'm', 'k', 'Mi', 'n'))}"
    return {"op": "divide", "quantity": amount, "zones": chance.randint(1, 8)}


def mid(chance: random.Random) -> Json:
    return _calculation(chance, 0)


def _sync(chance: random.Random) -> Json:
    old = chance.choice((0, 1, 9, 10, 11, 20, 999, chance.randint(0, 10**6), chance.randint(0, 10**12)))
    new = chance.choice((old, old + 1, old - 1, old * 11 // 10, old * 9 // 10, old * 11 // 10 + 1, 0, 5))
    texts = [None if chance.random() < 0.1 else f"{value}" for value in (old, max(new, 0))]
    return {
        "op": "needSync",
        "old": texts[0],
        "new": texts[1],
        "resourceDiffThreshold": chance.choice((0.1, 0.05, 0.3, 0.01, 1.0)),
    }


def _lent(chance: random.Random) -> Json:
    return {
        "kubernetes.io/batch-cpu": chance.choice(("0", "1", "25000", "33333", f"{chance.randint(0, 10**6)}")),
        "kubernetes.io/batch-memory": chance.choice(("0", "1Gi", "120G", f"{chance.randint(0, 10**12)}")),
    }


def _third_parties(chance: random.Random) -> Json:
    if chance.random() < 0.4:
        return {}
    held = [
        {
            "name": chance.choice(("hadoop-yarn", "b", "c")),
            "priority": chance.choice(("koord-batch", "koord-batch", "koord-mid", "")),
            "resources": _some(chance, *_lent(chance).items(), ("cpu", "3"), ("kubernetes.io/mid-cpu", "7")),
        }
        for _ in range(chance.randint(0, 3))
    ]
    return {labels.NODE_THIRD_PARTY_ALLOCATIONS: json.dumps({"allocations": held})}


def _preparation(chance: random.Random) -> Json:
    calculated = _lent(chance) if chance.random() < 0.8 else {}
    status = {"cpu": "100", "memory": "400Gi", **(_lent(chance) if chance.random() < 0.5 else {})}
    return {
        "op": "prepare",
        "node": {"annotations": _third_parties(chance), "capacity": status, "allocatable": dict(status)},
        "calculated": calculated,
        "resets": [] if calculated else ["kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"],
        **_some(
            chance,
            (
                "cpuNormalizationRatio",
                chance.choice(("1.00", "1.20", "0.50", "1.33", "2", "4.99", "bad", "")),
            ),
        ),
    }


def subtraction(chance: random.Random) -> Json:
    annotations = _third_parties(chance)
    if chance.random() < 0.3:
        return {"op": "sum", "annotations": annotations, "class": chance.choice(("koord-batch", "koord-mid"))}
    calculated: Json = _lent(chance)
    if chance.random() < 0.2:
        calculated = dict.fromkeys(calculated)
    ratio = {"cpuNormalizationRatio": chance.choice((1.0, 1.2, 1.33, 0.5))} if chance.random() < 0.3 else {}
    return {"op": "prepare", "calculated": calculated, "annotations": annotations, **ratio}


def _zones_update(chance: random.Random) -> Json:
    names = [f"node-{index}" for index in range(chance.randint(1, 3))]
    zones = [_zone(chance, index) for index in range(len(names))]
    for zone in zones:
        for name, amount in _some(chance, *_lent(chance).items()).items():
            fields = ("capacity", "allocatable", "available")
            zone["resources"].append({"name": name, **dict.fromkeys(fields, amount)})
        zone["resources"].sort(key=lambda each: each["name"])
    results = {name: _some(chance, *_lent(chance).items()) for name in names if chance.random() < 0.8}
    ratio = {"ratio": chance.choice((1.0, 1.2, 1.33, 0.5))} if chance.random() < 0.3 else {}
    asked = {"op": "updateZones", "zones": zones, "zoneResources": results, **ratio}
    return {**asked, "resourceDiffThreshold": chance.choice((0.1, 0.05, 0.5))}


def devices(chance: random.Random) -> Json:
    names = (
        ("koordinator.sh/gpu-core", ("100", "0", "50")),
        ("koordinator.sh/gpu-memory", ("8Gi", "8000", "16000M")),
        ("koordinator.sh/gpu-memory-ratio", ("100", "50")),
        ("huawei.com/npu-core", ("20", "7")),
        ("huawei.com/npu-cpu", ("20",)),
        ("huawei.com/npu-dvpp", ("100",)),
        ("example.com/other", ("1",)),
    )
    found = [
        {
            "id": f"{index}",
            "minor": index,
            "type": chance.choice(("gpu", "gpu", "gpu", "rdma", "fpga", "xpu")),
            "health": chance.random() < 0.8,
            "resources": _some(chance, *((name, chance.choice(texts)) for name, texts in names)),
        }
        for index in range(chance.randint(0, 8))
    ]
    told = _some(
        chance,
        (labels.GPU_VENDOR, chance.choice(("nvidia", "huawei", "amd", ""))),
        (labels.GPU_MODEL, "A100"),
        (labels.GPU_DRIVER_VERSION, "480"),
        ("example.com/other", "x"),
    )
    device = (
        None
        if chance.random() < 0.05
        else {"metadata": {"name": "n", "labels": told}, "spec": {"devices": found}}
    )
    return {
        "op": chance.choice(("gpu", "gpu", "rdma")),
        "device": device,
        "sharedGate": chance.random() < 0.5,
    }


def _ratio(chance: random.Random) -> float:
    return chance.choice(
        (1, 1.0, 1.5, 1.22, 1.005, 1.995, 2.675, 0.5, 0, 3, round(chance.uniform(0.8, 6), 4))
    )


_RATIO_TEXTS = (
    "1.22",
    "1.00",
    "1.005",
    "0.8",
    "0",
    "-1",
    "-1.00",
    "2",
    "1e0",
    "+1.5",
    " 1.5",
    "",
    "x",
    "1.20 ",
    ".5",
    "3.",
)


def amplification(chance: random.Random) -> Json:
    match chance.choice(
        ("calculate", "calculate", "nodeStatusAdmission", "nodeStatusAdmission", "amplifyValue")
    ):
        case "calculate":
            return _amplification(chance)
        case "nodeStatusAdmission":
            return _status_admission(chance)
    return {"op": "amplifyValue", "value": chance.randint(0, 10**9), "ratio": _ratio(chance)}


def _amplification(chance: random.Random) -> Json:
    def strategy() -> Json:
        ratios = {
            name: _ratio(chance) for name in ("cpu", "memory", "example.com/x") if chance.random() < 0.6
        }
        return _some(chance, ("enable", chance.random() < 0.8), ("resourceAmplificationRatio", ratios))

    entry = {"name": "e", "nodeSelector": {"matchLabels": {"a": "b"}}, **strategy()}
    return {
        "op": "calculate",
        "config": {**strategy(), **_some(chance, ("nodeConfigs", [entry]))},
        "nodeLabels": _some(chance, ("a", "b")),
        "nodeAnnotations": _some(chance, (labels.NODE_CPU_NORMALIZATION_RATIO, chance.choice(_RATIO_TEXTS))),
    }


def _status_admission(chance: random.Random) -> Json:
    def amounts() -> Json:
        return {**_amounts(chance), **_some(chance, ("ephemeral-storage", "10Gi"))}

    def node() -> Json:
        names = ("cpu", "memory", "example.com/x")
        ratios = usual if chance.random() < 0.7 else {name: _ratio(chance) for name in names}
        annotations = _some(
            chance,
            (labels.NODE_RESOURCE_AMPLIFICATION_RATIO, json.dumps(ratios)),
            (labels.NODE_RAW_ALLOCATABLE, json.dumps(amounts())),
        )
        return {
            "annotations": annotations,
            "allocatable": allocatable if chance.random() < 0.6 else amounts(),
        }

    allocatable = amounts()
    usual = {name: _ratio(chance) for name in ("cpu", "memory", "example.com/x") if chance.random() < 0.6}
    return {
        "op": "nodeStatusAdmission",
        "operation": chance.choice(("UPDATE", "UPDATE", "UPDATE", "CREATE")),
        "oldNode": None if chance.random() < 0.05 else node(),
        "node": node(),
    }


def api_amplification(chance: random.Random) -> Json:
    if chance.random() < 0.5:
        return {
            "op": "scalar",
            "amount": chance.randint(-5, 10 ** chance.randint(1, 15)),
            "ratio": _ratio(chance),
        }
    names = ("cpu", "memory", "ephemeral-storage", "kubernetes.io/batch-cpu", "example.com/x")
    return {
        "op": "list",
        "resources": _some(
            chance, *((name, chance.choice(_CPUS if name == "cpu" else _WHOLE)) for name in names)
        ),
        "ratios": _some(chance, *((name, _ratio(chance)) for name in names)),
        **({"names": [name for name in names if chance.random() < 0.5]} if chance.random() < 0.3 else {}),
    }


def normalization(chance: random.Random) -> Json:
    model = {
        name: _ratio(chance)
        for name in (
            "baseRatio",
            "turboEnabledRatio",
            "hyperThreadEnabledRatio",
            "hyperThreadTurboEnabledRatio",
        )
        if chance.random() < 0.8
    }

    def strategy() -> Json:
        return _some(
            chance,
            ("enable", chance.random() < 0.8),
            ("defaultRatio", _ratio(chance)),
            ("ratioModel", {"M": model, "N": {"baseRatio": _ratio(chance)}}),
        )

    info = {
        "cpuModel": chance.choice(("M", "M", "N", "")),
        "hyperThreadEnabled": chance.random() < 0.5,
        "turboEnabled": chance.random() < 0.5,
    }
    entry = {"name": "e", "nodeSelector": {"matchLabels": {"a": "b"}}, **strategy()}
    match chance.choice(("calculate", "modelRatio", "strategyRatio", "needSyncMeta", "syncConfig")):
        case "calculate":
            enabled = chance.choice(("true", "false", "1", "T", "yes", "", "TRUE", "True", "tRUE"))
            return {
                "op": "calculate",
                "config": {**strategy(), **_some(chance, ("nodeConfigs", [entry]))},
                "nodeLabels": _some(chance, ("a", "b"))
                | ({labels.NODE_CPU_NORMALIZATION_ENABLED: enabled} if chance.random() < 0.3 else {}),
                "topologyAnnotations": _some(chance, (labels.NODE_CPU_BASIC_INFO, json.dumps(info))),
            }
        case "needSyncMeta":
            texts = [chance.choice((*_RATIO_TEXTS, "1.23", "1.21", "1.2204", None)) for _ in range(2)]
            return {"op": "needSyncMeta", "old": texts[0], "new": texts[1]}
        case "syncConfig":
            config = {**strategy(), "nodeConfigs": [entry]}
            return {
                "op": "syncConfig",
                "old": strategy(),
                "configMapData": {"cpu-normalization-config": json.dumps(config)},
            }
        case op:
            return {"op": op, "basicInfo": info, "strategy": strategy()}
