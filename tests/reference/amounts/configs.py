"""Draws questions about `slo-controller-config` from what its keys may hold."""

import json
import random
from typing import Any

import msgspec
from msgspec import inspect

from koordinator.api import labels, slo_config
from koordinator.api.affinity import LabelSelector

Json = dict[str, Any]

_TYPES = {
    slo_config.COLOCATION.key: slo_config.ColocationConfig,
    slo_config.RESOURCE_THRESHOLD.key: slo_config.ThresholdConfig,
    slo_config.RESOURCE_QOS.key: slo_config.ResourceQOSConfig,
    slo_config.SYSTEM.key: slo_config.SystemConfig,
    slo_config.CPU_BURST.key: slo_config.CPUBurstConfig,
    slo_config.HOST_APPLICATION.key: slo_config.HostApplicationConfig,
    slo_config.CPU_NORMALIZATION.key: slo_config.CPUNormalizationConfig,
}
_CHECKED = tuple(_TYPES)[:5]
_MERGED = tuple(_TYPES)[1:6]
_NOT_THERE = (
    *("gpuReclaimPercent", "lendAheadMinutes", "extensions"),
    *(
        "pageCacheEnable",
        "pageCacheLimitPercent",
        "pageCacheLimitSize",
        "pageCacheReclaimSync",
        "pageCacheLimitEnabled",
    ),
)
"""Members that are ours, or that came later than the release that is asked."""

_INTEGERS = (
    -26,
    -25,
    -2,
    -1,
    0,
    2,
    3,
    12,
    13,
    51,
    99,
    100,
    101,
    400,
    401,
    1000,
    1001,
    7999,
    8000,
    10_000,
    10_001,
)
_WORDS = (
    "",
    "auto",
    "none",
    "cpuset",
    "cfsQuota",
    "usage",
    "request",
    "maxUsageRequest",
    "static",
    "LS",
    "koord-prod",
)
_MEMBERS = {
    "durations": ("5m0s", "1h", "90s", "1.5m", "0s"),
    "metricMemoryCollectPolicy": ("usageWithoutPageCache", "usageWithHotPageCache", "usageWithPageCache", ""),
    "totalNetworkBandwidth": ("1G", "1G", "0", "100M", 100, "1Gi", "1.5G", 1.5, "", "x", "-1", "1e3"),
    "base": ("", "CgroupRoot", "Kubepods"),
}
_SCALARS = (0, 1, -1, 1.5, 60.0, 1e3, True, "", "1", "x", None, [], {}, [1], {"a": 1}, 2**40)


_UNUSABLE: tuple[tuple[str, Any], ...] = (
    ("values", []),
    ("values", ["x", "-"]),
    ("values", ["x", "x"]),
    ("key", "a b"),
    ("key", "example.com/a"),
    ("operator", "Gt"),
    ("operator", "in"),
    ("operator", "Exists"),
)


def _value(chance: random.Random, name: str, kind: inspect.Type, often: float) -> Any:
    if name in _MEMBERS and isinstance(kind, inspect.StrType | inspect.FloatType | inspect.UnionType):
        return chance.choice(_MEMBERS[name])
    match kind:
        case inspect.UnionType():
            kinds = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
            return _value(chance, name, chance.choice(kinds), often)
        case inspect.StructType():
            return _selector(chance) if kind.cls is LabelSelector else _struct(chance, kind, often)
        case inspect.ListType():
            count = chance.choice((0, 1, 1, 2))
            return [_value(chance, name, kind.item_type, often) for _ in range(count)]
        case inspect.DictType():
            names = [each for each in ("a", "b") if chance.random() < 0.5]
            return {each: _value(chance, name, kind.value_type, often) for each in names}
        case inspect.BoolType():
            return chance.random() < 0.5
        case inspect.IntType():
            return chance.choice((1, 50)) if chance.random() < 0.6 else chance.choice(_INTEGERS)
        case inspect.FloatType():
            return chance.choice((0.1, 0.5, 1, 1.5, 0, -0.5))
    return chance.choice(_WORDS)


def _struct(chance: random.Random, kind: inspect.StructType, often: float) -> Json:
    found = {}
    for field in kind.fields:
        name = field.encode_name
        is_layer = isinstance(field.type, inspect.ListType) or name in (
            "nodeSelector",
            "clusterStrategy",
            "ioCfg",
        )
        if name not in _NOT_THERE and chance.random() < (0.8 if is_layer else often):
            found[name] = _value(chance, name, field.type, often)
    return found


def _selector(chance: random.Random) -> Json:
    conditions = [
        {
            "key": chance.choice(("a", "b")),
            "operator": (operator := chance.choice(("In", "In", "NotIn", "Exists", "DoesNotExist"))),
            **({"values": chance.sample("xyz", chance.randint(1, 2))} if operator.endswith("In") else {}),
        }
        for _ in range(chance.choice((0, 0, 1, 2)))
    ]
    if conditions and chance.random() < 0.1:
        name, value = chance.choice(_UNUSABLE)
        conditions[0][name] = value
    matching = {key: chance.choice("xy") for key in "ab" if chance.random() < (0.2 if conditions else 0.6)}
    return {
        **({"matchLabels": matching} if matching else {}),
        **({"matchExpressions": conditions} if conditions else {}),
    }


def config(chance: random.Random, key: str) -> Json:
    """What a key may say: few members, so that most of it is valid."""
    kind = inspect.type_info(_TYPES[key])
    assert isinstance(kind, inspect.StructType)
    found = _struct(chance, kind, chance.choice((0.05, 0.15, 0.4)))
    if chance.random() < 0.1:
        _spoil(chance, found)
    return found


def _spoil(chance: random.Random, holder: Json) -> None:
    """Another type somewhere, or a name in other letters."""
    name = chance.choice(sorted(holder) or ["enable"])
    below = holder.get(name)
    if isinstance(below, list) and below and isinstance(below[0], dict):
        below = below[0]
    if isinstance(below, dict) and below and name != "nodeSelector" and chance.random() < 0.8:
        _spoil(chance, below)
    elif chance.random() < 0.3 and name in holder:
        holder[chance.choice((name.upper(), name.title(), name.lower()))] = holder.pop(name)
    else:
        holder[name] = chance.choice(_SCALARS)


def text(chance: random.Random, key: str) -> str:
    found = json.dumps(config(chance, key))
    if chance.random() < 0.03:
        return chance.choice(("", "null", "{", "[]", '"x"', found + " ", found + "x", " ", "{}", found[:-1]))
    return found


def _data(chance: random.Random, keys: tuple[str, ...]) -> dict[str, str]:
    found = {key: text(chance, key) for key in keys if chance.random() < 0.5}
    return {key: text for key, text in found.items() if chance.random() < 0.97}


def _labels(chance: random.Random) -> dict[str, str]:
    return {key: chance.choice("xyz") for key in "ab" if chance.random() < 0.6}


def validation(chance: random.Random) -> Json:
    match chance.choice(("content", "content", "configmap", "configmap", "overlap", "node")):
        case "content":
            key = chance.choice(_CHECKED)
            asked: Json = {"op": "content", "key": key, "config": config(chance, key)}
            if key == slo_config.RESOURCE_QOS.key and chance.random() < 0.8:
                asked["systemConfig"] = config(chance, slo_config.SYSTEM.key)
            return asked
        case "configmap":
            return _change(chance)
        case "overlap":
            count = chance.randint(0, 3)
            selectors = [_selector(chance) or {"matchLabels": {"a": "x"}} for _ in range(count)]
            profiles = [{"name": f"e{at}", "nodeSelector": each} for at, each in enumerate(selectors)]
            return {"op": "overlap", "profiles": profiles}
    return {
        "op": "node",
        "operation": chance.choice(("UPDATE", "UPDATE", "UPDATE", "CREATE")),
        "configMapData": None if chance.random() < 0.05 else _data(chance, _CHECKED),
        "oldLabels": _labels(chance),
        "newLabels": _labels(chance),
    }


def _change(chance: random.Random) -> Json:
    new = _data(chance, _CHECKED)
    operation = chance.choice(("CREATE", "UPDATE", "UPDATE"))
    old = {**_data(chance, _CHECKED), **{key: text for key, text in new.items() if chance.random() < 0.3}}
    return {
        "op": "configmap",
        "operation": operation,
        "oldData": old if operation == "UPDATE" else None,
        "newData": new,
        "nodes": [
            {"metadata": {"name": f"n{at}", "labels": _labels(chance)}} for at in range(chance.randint(0, 4))
        ],
        "nodeStrategyNameNeedCheck": chance.random() < 0.2,
    }


def node_slo(chance: random.Random) -> Json:
    annotations = {}
    if chance.random() < 0.2:
        annotations[labels.NODE_NETWORK_BANDWIDTH] = chance.choice(("1G", "100", "0", "x", ""))
    return {
        "previousData": None if chance.random() < 0.6 else _data(chance, _MERGED),
        "data": None if chance.random() < 0.03 else _data(chance, _MERGED),
        "node": {"metadata": {"name": "n", "labels": _labels(chance), "annotations": annotations}},
    }


def normalization(chance: random.Random) -> Json:
    key = slo_config.CPU_NORMALIZATION.key
    return {
        "op": "syncConfig",
        "old": {"enable": True, "ratioModel": {"Old": {"baseRatio": 1.1}}},
        "configMapData": None if chance.random() < 0.05 else _data(chance, (key,)),
    }


_DEFAULT: Json = msgspec.json.decode(
    slo_config.COLOCATION.encode(
        slo_config.ColocationConfig(**msgspec.structs.asdict(slo_config.DEFAULT_COLOCATION_STRATEGY))
    )
)


def colocation(chance: random.Random) -> Json:
    key = slo_config.COLOCATION.key
    drawn = config(chance, key)
    said = {name.lower() for name in drawn}
    full = {**{name: value for name, value in _DEFAULT.items() if name.lower() not in said}, **drawn}
    match chance.choice(("sync", "sync", "nodeStrategy", "isValid", "nodeMetricSpec", "isDisabled")):
        case "sync":
            old = _DEFAULT if chance.random() < 0.5 else full
            return {
                "op": "sync",
                "old": {"config": old, "available": chance.random() < 0.5, "error": chance.random() < 0.5},
                "configMapData": None if chance.random() < 0.05 else _data(chance, (key,)),
            }
        case "isValid":
            return {"op": "isValid", "strategy": config(chance, key)}
        case "nodeMetricSpec":
            return {
                "op": "nodeMetricSpec",
                "colocationConfig": full,
                "node": _node(chance),
                "configErrorStatus": chance.random() < 0.2,
            }
        case op:
            return {"op": op, "colocationConfig": full, "node": _node(chance)}


def _node(chance: random.Random) -> Json:
    ratios = {
        label: chance.choice(("0.7", "1", "0.29", "-0.1", "x", "", "1e-1", "0.575", "1.005", "inf", "NaN"))
        for label in (
            labels.NODE_CPU_RECLAIM_RATIO,
            labels.NODE_MEMORY_RECLAIM_RATIO,
            labels.NODE_MID_STATIC_CPU_RESERVED_RATIO,
            labels.NODE_MID_STATIC_MEMORY_RESERVED_RATIO,
        )
        if chance.random() < 0.15
    }
    annotations = {}
    if chance.random() < 0.4:
        annotations[labels.NODE_COLOCATION_STRATEGY] = text(chance, slo_config.COLOCATION.key)
    return {"metadata": {"name": "n", "labels": {**_labels(chance), **ratios}, "annotations": annotations}}
