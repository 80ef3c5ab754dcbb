"""What the reference answers in areas of the manager, worked out from what we answer."""

import copy
import json
import re
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import msgspec

from koordinator.api import labels, node_labels, qos, quantity, slo_config
from koordinator.api.annotations.node import third_party_by_priority
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.errors import ProtocolError
from koordinator.api.groups import ClusterColocationProfile
from koordinator.api.labels import NODE_RAW_ALLOCATABLE as RAW_ALLOCATABLE
from koordinator.api.node_metric import MEMORY_COLLECT_POLICIES
from koordinator.api.priority import PriorityClass
from koordinator.api.quantity import NANO
from koordinator.api.resources import BATCH_CPU
from koordinator.manager.config import colocation_config
from koordinator.manager.noderesource import batch
from koordinator.manager.noderesource.account import whole
from koordinator.manager.noderesource.target import BATCH
from koordinator.manager.profiles.profile_matching import compile_profile
from koordinator.manager.quota import validation
from koordinator.manager.quota.validation import ALLOWED, QuotaRefusal, QuotaVerdict
from tests.vectors.adapters.manager_profile import without_empty
from tests.vectors.deviations.question import Ask, Case

_QOS, _SYSTEM = "resource-qos-config", "system-config"
_IGNORED = ("host-application-config", "cpu-normalization-config", "resource-amplification-config")
_PAGE_CACHE_WORD = re.compile(r'(metricMemoryCollectPolicy\\*": *\\*")([^"\\]*)')
"""Also in the text of a ConfigMap's key, where quotes are escaped."""
_BEFORE_QOS = ("colocation-config", "resource-threshold-config")
_WITH_NETWORK = ("lsrClass", "lsClass", "beClass")
_ENTRIES = "nodeConfigs"
_RATIOS = {
    labels.NODE_CPU_RECLAIM_RATIO: "cpuReclaimThresholdPercent",
    labels.NODE_MEMORY_RECLAIM_RATIO: "memoryReclaimThresholdPercent",
    labels.NODE_MID_STATIC_CPU_RESERVED_RATIO: "midStaticCPUReservedPercent",
    labels.NODE_MID_STATIC_MEMORY_RESERVED_RATIO: "midStaticMemoryReservedPercent",
}
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


def with_any_page_cache_word(case: Case, ask: Ask) -> Any:
    """Any word but an empty one is a policy, and for admission that one, too."""
    whole = json.dumps(case)
    words = {word for _, word in _PAGE_CACHE_WORD.findall(whole)} - set(MEMORY_COLLECT_POLICIES)
    if case["op"] not in ("content", "configmap"):
        words.discard("")
    stand_in = next((each for each in MEMORY_COLLECT_POLICIES if each not in whole), "")
    if len(words) != 1 or not stand_in:
        return None
    (word,) = words
    changed = _PAGE_CACHE_WORD.sub(lambda m: m[1] + (stand_in if m[2] == word else m[2]), whole)
    answer = json.dumps(ask(json.loads(changed)))
    return json.loads(answer.replace(stand_in, word))


def with_steps_done_once(case: Case, ask: Ask) -> Any:
    """The controller does what admission does, except for scheduler, priority class and resources, and no more."""
    if case["op"] != "reconcilePendingPod" or not _is_reached(case, ask):
        return None
    left_out = ("selector", "namespaceSelector", "probability", "schedulerName", "priorityClassName")
    spec = {name: value for name, value in case["profile"]["spec"].items() if name not in left_out}
    admission = {
        "op": "mutatePod",
        "profiles": [{**case["profile"], "spec": spec}],
        "skipResourcesGate": True,
    }
    return ask({**case, **admission})


def _is_reached(case: Case, ask: Ask) -> bool:
    """Whether the profile applies to the pod, found out with a label of which nothing else knows."""
    mark = "deviations/reached"
    spec = {
        name: value for name, value in case["profile"]["spec"].items() if name in ("selector", "probability")
    }
    answer = ask({**case, "profile": {**case["profile"], "spec": {**spec, "labels": {mark: "x"}}}})
    return mark in (answer["pod"]["metadata"].get("labels") or {})


def without_amounts_of_whole_pods(case: Case, ask: Ask) -> Any:
    """What a Batch or Mid pod asks for as a whole stays where it is."""
    pod = case.get("pod") or {}
    whole = (pod.get("spec") or {}).get("resources")
    if case["op"] != "mutatePod" or not whole:
        return None
    # The class that the amounts give the pod stays, too.
    status = {**(pod.get("status") or {}), "qosClass": qos.kube(from_builtins(pod, Pod)).value}
    spec = {name: value for name, value in pod["spec"].items() if name != "resources"}
    answer = ask({**case, "pod": {**pod, "spec": spec, "status": status}})
    if "pod" not in answer:
        return None
    found = {**answer["pod"], "spec": {**answer["pod"]["spec"], "resources": whole}}
    return {"pod": without_empty({**found, "status": pod.get("status") or {}})}


# pod-inject


def with_terms_without_conditions(case: Case, ask: Ask) -> Any:
    """A tree of all nodes gives its pods a term without conditions, for which no node is good."""
    if case["op"] != "quotaTreeAffinity":
        return None
    mark = "deviations/any"
    profiles = []
    for profile in case["profiles"]:
        selector = profile["spec"].get("nodeSelector")
        if selector is not None and not any(selector.values()):
            selector = {"matchLabels": {mark: "x"}}
        profiles.append({**profile, "spec": {**profile["spec"], "nodeSelector": selector}})
    answer = copy.deepcopy(ask({**case, "profiles": profiles}))
    if mark not in json.dumps(answer):
        return None
    required = answer["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    for term in required["nodeSelectorTerms"]:
        term["matchExpressions"] = [each for each in term["matchExpressions"] if each["key"] != mark]
    return answer


# pod-transform


def with_batch_of_nothing(case: Case, ask: Ask) -> Any:
    """Taking a reservation off a node names Batch amounts of zero first, which hide those under old names."""
    if case["kind"] != "node" or labels.NODE_RESERVATION not in (case["object"].get("annotations") or {}):
        return None
    allocatable = {**dict.fromkeys(BATCH, "0"), **(case["object"].get("allocatable") or {})}
    return ask({**case, "object": {**case["object"], "allocatable": allocatable}})


# api-pod-resources


def without_sidecars(case: Case, ask: Ask) -> Any:
    """The reference's annotation with Batch amounts names normal containers only."""
    if case["op"] != "extended" or not case["pod"]["spec"].get("initContainers"):
        return None
    spec = {**case["pod"]["spec"], "initContainers": []}
    return ask({**case, "pod": {**case["pod"], "spec": spec}})


# noderesource-batch and noderesource-mid


def without_unreported_pods(case: Case, ask: Ask) -> Any:
    """On nodes, not on zones, the larger of usage and request is that of reported pods only."""
    if case["op"] not in ("calculate", "calculateWithConfig"):
        return None
    policies = case["strategy"] if case["op"] == "calculate" else _strategy(case)
    reported = {_key(each) for each in case["nodeMetricStatus"].get("podsMetric") or ()}
    pods = [pod for pod in case["pods"] if _key(pod["metadata"]) in reported]
    if len(pods) == len(case["pods"]):
        return None
    answer, other = dict(ask(case)), ask({**case, "pods": pods})
    for field, policy in (("batchCPU", "cpuCalculatePolicy"), ("batchMemory", "memoryCalculatePolicy")):
        if policies.get(policy) == "maxUsageRequest" and field in answer:
            answer[field] = other[field]
    return answer


def _key(named: Case) -> tuple[str, str]:
    return named.get("namespace") or "", named.get("name") or ""


def _strategy(case: Case) -> Case:
    """What the configuration says for the case's node."""
    config = slo_config.COLOCATION.decode(json.dumps(case["colocationConfig"]))
    found = colocation_config.node_strategy(config, from_builtins(case["node"], Node))
    return dict(msgspec.to_builtins(found))


def without_raw_allocatable(case: Case, ask: Ask) -> Any:
    """The reservation of the kubelet is what amplified allocatable leaves of the capacity."""
    metadata = (case.get("node") or {}).get("metadata") or {}
    if RAW_ALLOCATABLE not in (metadata.get("annotations") or {}):
        return None
    kept = {key: text for key, text in metadata["annotations"].items() if key != RAW_ALLOCATABLE}
    return ask({**case, "node": {**case["node"], "metadata": {**metadata, "annotations": kept}}})


def with_useless_updates(case: Case, ask: Ask) -> Any:
    """Batch amounts of zones without results are set to zero in a copy, and so call for an update each time."""
    if case["op"] != "updateZones":
        return None
    without = [zone for zone in case["zones"] if zone["name"] not in case["zoneResources"]]
    left = [each for zone in without for each in zone.get("resources") or () if each["name"] in BATCH]
    amounts = [
        quantity.of(each[field]) for each in left for field in ("capacity", "allocatable", "available")
    ]
    return {**ask(case), "changed": True} if any(amount.nanos for amount in amounts) else None


def with_parts_of_units(case: Case, ask: Ask) -> Any:
    """What normalization makes of a zone's Batch CPU is compared in thousandths, then rounded."""
    ratio = case.get("ratio") or 0.0
    if case["op"] != "updateZones" or ratio <= 1:
        return None
    rest, wanted, parts = copy.deepcopy(case), {}, False
    for zone in rest["zones"]:
        amounts = rest["zoneResources"].get(zone["name"], {})
        if BATCH_CPU in amounts and any(row["name"] == BATCH_CPU for row in zone["resources"]):
            wanted[zone["name"]] = milli = int(quantity.milli(amounts.pop(BATCH_CPU)) * ratio)
            parts |= milli % 1000 != 0
    if not parts:
        return None
    answer = copy.deepcopy(ask(rest))
    for zone in rest["zones"]:
        if (milli := wanted.get(zone["name"])) is not None:
            row = next(row for row in zone["resources"] if row["name"] == BATCH_CPU)
            told = next(row for row in answer["zones"][zone["name"]] if row[0] == BATCH_CPU)
            for at, field in enumerate(("capacity", "allocatable", "available"), 1):
                if batch.differs(quantity.milli(row[field]), milli, case["resourceDiffThreshold"]):
                    told[at], answer["changed"] = whole(milli), True
    return answer


# colocation-config


def with_percents_of_no_number(case: Case, ask: Ask) -> Any:
    """Ratios without end are cut off to whatever the machine makes of them, which no NodeMetric can follow."""
    if case["op"] not in ("nodeStrategy", "nodeMetricSpec"):
        return None
    said = case["node"].get("metadata", {}).get("labels") or {}
    endless = [key for key in _RATIOS if said.get(key, "").lower() in ("nan", "inf", "+inf")]
    if not endless:
        return None
    if case["op"] == "nodeMetricSpec":
        return ask({**case, "colocationConfig": {"enable": False}, "node": {}})
    return {"strategy": {**ask(case)["strategy"], **{_RATIOS[key]: -(2**63) for key in endless}}}


def with_empty_lists_told_apart(case: Case, ask: Ask) -> Any:
    """A list that is empty is not one that is missing, so that nodes are looked at for nothing."""
    if case["op"] != "sync":
        return None
    answer, data = ask(case), case["configMapData"]
    if answer["state"]["error"] and data is not None:
        return None  # what was kept stays
    new, old = json.loads((data or {}).get("colocation-config") or "{}") or {}, case["old"]["config"]
    return {**answer, "changed": True} if (new.get(_ENTRIES) == []) != (old.get(_ENTRIES) == []) else None


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
    """Entries that say something, but no bandwidth, reset it, since the reference always writes that member."""

    def reset(config: Case) -> None:
        for entry in _entries(config):
            if any(
                value is not None for name, value in entry.items() if name not in ("name", "nodeSelector")
            ):
                entry.setdefault("totalNetworkBandwidth", "0")

    return _rewritten(case, ask, _SYSTEM, reset)


def with_blocks_by_index(case: Case, ask: Ask) -> Any:
    """Block devices of an entry inherit from the cluster's at the same place of the list, whatever their names."""

    def inherit(config: Case) -> None:
        for entry in _entries(config):
            for name in _CLASSES:
                own, below = _blocks(entry, name), _blocks(config.get("clusterStrategy") or {}, name)
                for block, base in zip(own, below, strict=False):
                    limits = {**_said(base.get("ioCfg") or {}), **_said(block.get("ioCfg") or {})}
                    block.update({**base, **_said(block)})
                    if limits:
                        block["ioCfg"] = limits

    return _rewritten(case, ask, _QOS, inherit)


def _entries(config: Case) -> list[Case]:
    return [entry for entry in config.get("nodeStrategies") or () if entry]


def _said(settings: Case) -> Case:
    """What is written down again after it was read."""
    return {name: value for name, value in settings.items() if value not in (None, "")}


def _blocks(strategy: Case, name: str) -> list[Case]:
    return ((strategy.get(name) or {}).get("blkioQOS") or {}).get("blocks") or []


def _rewritten(case: Case, ask: Ask, key: str, rewrite: Callable[[Case], None]) -> Any:
    """The answer to the case with a key of its ConfigMaps rewritten; None when that changes nothing."""
    changed = {}
    for field in ("previousData", "data"):
        data = case[field] or {}
        if key not in data or key in ask({**case, "previousData": None, "data": data})["parseErrors"]:
            continue
        config = json.loads(data[key]) or {}
        before = copy.deepcopy(config)
        rewrite(config)
        if config != before:
            changed[field] = {**data, key: json.dumps(config)}
    return ask({**case, **changed}) if changed else None


# yarn-batch-subtract


def with_fractions_left(case: Case, ask: Ask) -> Any:
    """What third parties leave is rounded, not what they hold."""
    if case["op"] != "prepare":
        return None
    answer = ask(case)
    try:
        held = third_party_by_priority(case.get("annotations") or {}, PriorityClass.BATCH)
    except (ProtocolError, quantity.QuantityError):
        return None
    origin, left = answer["origin"], dict(answer["kubeTotal"])
    for name, amount in (held or {}).items():
        if left.get(name) is not None:
            left[name] = max(origin[name] - amount.nanos // NANO, 0)
    return {**answer, "kubeTotal": left}


# slo-config-validation


def with_bandwidths_as_numbers(case: Case, ask: Ask) -> Any:
    """The reference adds percents and bits per second as plain numbers, and holds sums against 100 and the total."""
    if case["op"] == "content" and case["key"] == _QOS:
        if not ask(case)["valid"]:
            return None
        config, system, refusal = case["config"], case.get("systemConfig") or {}, {"valid": False}
    elif case["op"] == "configmap" and case["operation"] != "DELETE":
        old, new = case["oldData"] or {}, case["newData"] or {}
        if new.get(_QOS, "") in ("", old.get(_QOS, "")) or not (
            _passes(case, ask, _BEFORE_QOS) and _passes(case, ask, (_QOS,), "NodeStrategiesOverlap")
        ):
            return None
        config, system = json.loads(new[_QOS]), json.loads(new.get(_SYSTEM) or "{}")
        refusal = {"allowed": False, "reason": "ConfigParamInvalid"}
    else:
        return None
    return (
        refusal if any(_is_above(sums, total) for sums, total in _sums(config or {}, system or {})) else None
    )


def _passes(case: Case, ask: Ask, keys: tuple[str, ...], *later: str) -> bool:
    """Whether some keys of a ConfigMap would pass, up to what is judged later; nodes are looked at last."""
    old, new = case["oldData"] or {}, case["newData"] or {}
    system = {_SYSTEM: new[_SYSTEM]} if _SYSTEM in new else {}  # read for QoS, and not judged yet
    first = {key: text for key, text in new.items() if key in keys}
    verdict = ask({**case, "oldData": {**old, **system}, "newData": {**first, **system}})
    return verdict["allowed"] or verdict["reason"] in ("ExistNodeConfict", *later)


def _is_above(sums: int, total: int | None) -> bool:
    return sums > 100 or (total is not None and sums > total)


def _sums(config: Case, system: Case) -> Iterator[tuple[int, int | None]]:
    """Per layer and direction: what classes request, and the total that it is held against."""
    cluster = system.get("clusterStrategy")
    cluster_total = (cluster or {}).get("totalNetworkBandwidth", 0)
    by_selector = [
        (entry.get("nodeSelector"), entry.get("totalNetworkBandwidth", 0))
        for entry in system.get("nodeStrategies") or ()
    ]
    layers = [(config.get("clusterStrategy") or {}, None if cluster is None else cluster_total)]
    for entry in config.get("nodeStrategies") or ():
        own = next((total for selector, total in by_selector if selector == entry.get("nodeSelector")), 0)
        layers.append((entry, own if by_selector else cluster_total))
    for layer, total in layers:
        for field in ("ingressRequest", "egressRequest"):
            requests = [
                ((layer.get(name) or {}).get("networkQOS") or {}).get(field) for name in _WITH_NETWORK
            ]
            sums = sum(quantity.value(each) for each in requests if each is not None)
            yield sums, None if total is None else quantity.value(total)


def with_system_config_required(case: Case, ask: Ask) -> Any:
    """A changed resource-qos-config cannot be parsed without a system-config in the reference."""
    if case["op"] != "configmap" or case["operation"] == "DELETE":
        return None
    old, new = case["oldData"] or {}, case["newData"] or {}
    is_missing = new.get(_SYSTEM, "") == "" and new.get(_QOS, "") not in ("", old.get(_QOS, ""))
    if not is_missing or not _passes(case, ask, _BEFORE_QOS):
        return None
    return {"allowed": False, "reason": "ParseConfigFail"}


def without_bounds_of_disks(case: Case, ask: Ask) -> Any:
    """Whole numbers of block devices may be any."""
    if case["op"] == "content" and case["key"] == _QOS:
        config = _with_disks_in_bounds(case["config"])
        return None if config == case["config"] else ask({**case, "config": config})
    text = (case.get("newData") or {}).get(_QOS) if case["op"] == "configmap" else None
    try:
        config = json.loads(text or "null")
    except ValueError:
        return None
    changed = _with_disks_in_bounds(config)
    return (
        None
        if changed == config
        else ask({**case, "newData": {**case["newData"], _QOS: json.dumps(changed)}})
    )


def _with_disks_in_bounds(config: Any) -> Any:
    changed = copy.deepcopy(config)
    if not isinstance(changed, dict):
        return changed
    for layer in (changed.get("clusterStrategy") or {}, *(changed.get("nodeStrategies") or ())):
        for block in (block for name in _CLASSES for block in _blocks(layer, name)):
            limits = block.get("ioCfg") or {}
            limits.update({name: 50 for name, value in limits.items() if type(value) is int})
    return changed


def without_keys_that_the_reference_ignores(case: Case, ask: Ask) -> Any:
    """It looks at five keys, and at the QoS of an unchanged key no more when system-config changes."""
    if case["op"] != "configmap" or case["operation"] == "DELETE":
        return None
    old, new = case["oldData"] or {}, case["newData"] or {}
    dropped = {*_IGNORED, *([_QOS] if new.get(_QOS) == old.get(_QOS) else [])}
    seen = {key: text for key, text in new.items() if key not in dropped}
    return ask({**case, "newData": seen}) if seen != new else None


# quota-webhook and elasticquota-webhook


def with_circles(case: Case, ask: Ask) -> Any:
    """A quota may be moved below itself."""
    own_check = validation._parent

    def without_circles(*args: Any) -> QuotaVerdict:
        verdict = own_check(*args)
        return ALLOWED if verdict.refusal is QuotaRefusal.CYCLE else verdict

    with mock.patch.object(validation, "_parent", without_circles):
        return ask(case)
