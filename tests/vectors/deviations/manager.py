"""What the reference answers in areas of the manager, worked out from what we answer."""

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

from koordinator.api import node_labels, quantity
from koordinator.api.core import Node
from koordinator.api.decode import from_builtins
from koordinator.api.errors import ProtocolError
from koordinator.api.groups import ClusterColocationProfile
from koordinator.api.quantity import NANO
from koordinator.manager.profiles.profile_matching import compile_profile
from tests.vectors.deviations.question import Ask, Case

_QOS, _SYSTEM = "resource-qos-config", "system-config"
_IGNORED = ("host-application-config", "cpu-normalization-config", "resource-amplification-config")
_CLASSES = ("lsrClass", "lsClass", "beClass", "systemClass", "cgroupRoot")


# colocationprofile-mutate


def with_one_draw_more(case: Case, ask: Ask) -> Any:
    """The reference compares the draw with "greater than"."""
    return ask({**case, "random": case["random"] - 1}) if case.get("random", 0) > 0 else None


def without_unusable_selectors(case: Case, ask: Ask) -> Any:
    """Selectors that cannot be asked hold in the reference."""
    if case["op"] != "mutatePod":
        return None
    is_known = case["pod"]["metadata"].get("namespace", "") in (case.get("namespaces") or {})
    profiles = []
    for profile in case["profiles"]:
        spec = dict(profile["spec"])
        if not is_known:
            spec.pop("namespaceSelector", None)
        while (defect := _unusable(profile, spec)) is not None:
            del spec[defect]
        profiles.append({**profile, "spec": spec})
    return None if profiles == case["profiles"] else ask({**case, "profiles": profiles})


def _unusable(profile: Case, spec: Case) -> str | None:
    found = compile_profile(from_builtins({**profile, "spec": spec}, ClusterColocationProfile)).unusable
    return None if found is None else found.field.removeprefix("spec.")


# api-pod-resources


def without_sidecars(case: Case, ask: Ask) -> Any:
    """The reference's annotation with Batch amounts names normal containers only."""
    if case["op"] != "extended" or not case["pod"]["spec"].get("initContainers"):
        return None
    spec = {**case["pod"]["spec"], "initContainers": []}
    return ask({**case, "pod": {**case["pod"], "spec": spec}})


# noderesource-batch


def without_unreported_pods(case: Case, ask: Ask) -> Any:
    """On nodes, not on zones, the larger of usage and request is that of reported pods only."""
    if case["op"] != "calculate":
        return None
    reported = {
        (each.get("namespace"), each["name"]) for each in case["nodeMetricStatus"].get("podsMetric") or ()
    }
    pods = [
        pod for pod in case["pods"] if (pod["metadata"].get("namespace"), pod["metadata"]["name"]) in reported
    ]
    if len(pods) == len(case["pods"]):
        return None
    answer, other = dict(ask(case)), ask({**case, "pods": pods})
    for field, policy in (("batchCPU", "cpuCalculatePolicy"), ("batchMemory", "memoryCalculatePolicy")):
        if case["strategy"].get(policy) == "maxUsageRequest" and field in answer:
            answer[field] = other[field]
    return answer


# nodeslo-merge


def without_system_strategy(case: Case, ask: Ask) -> Any:
    """A malformed bandwidth of the node's annotation takes the whole section away."""
    node = from_builtins(case["node"], Node)
    try:
        node_labels.network_bandwidth(node.metadata.annotations, "Node n")
    except ProtocolError:
        answer = dict(ask(case))
        spec = dict(answer["spec"])
        spec.pop("systemStrategy", None)
        return {**answer, "spec": spec}
    return None


def with_bandwidth_reset(case: Case, ask: Ask) -> Any:
    """Entries that name no bandwidth reset it, since the reference always writes that member."""

    def reset(config: Case) -> None:
        for entry in config.get("nodeStrategies") or ():
            entry.setdefault("totalNetworkBandwidth", "0")

    return _rewritten(case, ask, _SYSTEM, reset)


def with_blocks_by_index(case: Case, ask: Ask) -> Any:
    """Block devices of an entry inherit from the cluster's at the same place of the list, whatever their names."""

    def inherit(config: Case) -> None:
        for entry in config.get("nodeStrategies") or ():
            for name in _CLASSES:
                own, below = _blocks(entry, name), _blocks(config.get("clusterStrategy") or {}, name)
                for block, base in zip(own, below, strict=False):
                    merged = {**base, **block}
                    if "ioCfg" in base or "ioCfg" in block:
                        merged["ioCfg"] = {**(base.get("ioCfg") or {}), **(block.get("ioCfg") or {})}
                    block.update(merged)

    return _rewritten(case, ask, _QOS, inherit)


def _blocks(strategy: Case, name: str) -> list[Case]:
    return ((strategy.get(name) or {}).get("blkioQOS") or {}).get("blocks") or []


def _rewritten(case: Case, ask: Ask, key: str, rewrite: Callable[[Case], None]) -> Any:
    """The answer to the case with a key of its ConfigMaps rewritten; None when that changes nothing."""
    changed = {}
    for field in ("previousData", "data"):
        data = case[field] or {}
        try:
            config = json.loads(data.get(key, ""))
        except ValueError:
            continue
        before = copy.deepcopy(config)
        rewrite(config)
        if config != before:
            changed[field] = {**data, key: json.dumps(config)}
    return ask({**case, **changed}) if changed else None


# slo-config-validation


def with_bandwidths_as_numbers(case: Case, ask: Ask) -> Any:
    """The reference adds percents and bits per second as plain numbers, and holds sums against 100 and the total."""
    if case["op"] == "content" and case["key"] == _QOS:
        config, system, refusal = case["config"], case.get("systemConfig") or {}, {"valid": False}
    elif case["op"] == "configmap" and case["operation"] != "DELETE":
        old, new = case["oldData"] or {}, case["newData"] or {}
        if new.get(_QOS, "") in ("", old.get(_QOS, "")) or not ask(case)["allowed"]:
            return None
        config, system = json.loads(new[_QOS]), json.loads(new.get(_SYSTEM) or "{}")
        refusal = {"allowed": False, "reason": "ConfigParamInvalid"}
    else:
        return None
    return refusal if any(_is_above(sums, total) for sums, total in _sums(config, system)) else None


def _is_above(sums: int, total: int | None) -> bool:
    return sums > 100 * NANO or (total is not None and sums > total)


def _sums(config: Case, system: Case) -> Iterator[tuple[int, int | None]]:
    """Per layer and direction: what classes request, and the total that it is held against, in billionths."""
    cluster_total = (system.get("clusterStrategy") or {}).get("totalNetworkBandwidth", 0)
    by_selector = [
        (entry.get("nodeSelector"), entry.get("totalNetworkBandwidth", 0))
        for entry in system.get("nodeStrategies") or ()
    ]
    layers = [(config.get("clusterStrategy") or {}, cluster_total if system.get("clusterStrategy") else None)]
    for entry in config.get("nodeStrategies") or ():
        own = next((total for selector, total in by_selector if selector == entry.get("nodeSelector")), 0)
        layers.append((entry, own if by_selector else cluster_total))
    for layer, total in layers:
        for field in ("ingressRequest", "egressRequest"):
            requests = [((layer.get(name) or {}).get("networkQOS") or {}).get(field, 0) for name in _CLASSES]
            sums = sum(quantity.of(each).nanos for each in requests)
            yield sums, None if total is None else quantity.of(total).nanos


def with_system_config_required(case: Case, ask: Ask) -> Any:
    """A changed resource-qos-config cannot be parsed without a system-config in the reference."""
    if case["op"] != "configmap" or case["operation"] == "DELETE":
        return None
    old, new = case["oldData"] or {}, case["newData"] or {}
    is_missing = new.get(_SYSTEM, "") == "" and new.get(_QOS, "") not in ("", old.get(_QOS, ""))
    # What is checked after it no longer counts.
    before = {key: text for key, text in new.items() if key != "cpu-burst-config"}
    if not is_missing or not ask({**case, "newData": before})["allowed"]:
        return None
    return {"allowed": False, "reason": "ParseConfigFail"}


def without_keys_that_the_reference_ignores(case: Case, ask: Ask) -> Any:
    """It looks at five keys, and at the QoS of an unchanged key no more when system-config changes."""
    if case["op"] != "configmap" or case["operation"] == "DELETE":
        return None
    old, new = case["oldData"] or {}, case["newData"] or {}
    dropped = {*_IGNORED, *([_QOS] if new.get(_QOS) == old.get(_QOS) else [])}
    seen = {key: text for key, text in new.items() if key not in dropped}
    return ask({**case, "newData": seen}) if seen != new else None
