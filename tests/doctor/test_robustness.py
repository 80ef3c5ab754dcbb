"""Whatever a cluster holds, the doctor says something about it and does not fall over (properties)."""

import json
from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings

from koordinator.api import slo_config
from koordinator.api.core import ConfigMap, Node, Pod
from koordinator.api.groups import ClusterColocationProfile
from koordinator.api.node_metric import NodeMetric
from koordinator.api.sigs import ElasticQuota
from koordinator.doctor.checks.all import examine
from koordinator.doctor.finding import Finding, FindingSeverity
from tests.doctor import builders
from tests.doctor.builders import healthy, snapshot

KEYS = (
    "colocation-config",
    "resource-threshold-config",
    "resource-qos-config",
    "cpu-burst-config",
    "system-config",
    "host-application-config",
    "cpu-normalization-config",
    "resource-amplification-config",
)
WORDS = st.sampled_from(
    ["enable", "clusterStrategy", "nodeStrategies", "nodeConfigs", "nodeSelector", "name", "matchLabels",
     "matchExpressions", "operator", "values", "degradeTimeMinutes", "cpuSuppressThresholdPercent", "lsr", "x"]
)  # fmt: skip
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-(10**6), 10**6), st.floats(), WORDS)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)
TEXTS = st.one_of(VALUES.map(json.dumps), st.text(max_size=20))
AMOUNTS = st.one_of(
    st.sampled_from(["1", "-1", "1e300", "500m", "9Ei", "", "many", "-0"]), st.text(max_size=6)
)


def is_complete(each: Finding) -> bool:
    return bool(each.check and each.object and each.problem)


@settings(max_examples=50, deadline=None)
@given(data=st.dictionaries(st.sampled_from(KEYS), TEXTS, max_size=3))
def test_any_text_in_the_configuration_is_judged(data: dict[str, str]) -> None:
    objects = healthy()
    objects[ConfigMap] = [
        builders.decoded(
            ConfigMap, {"data": data}, name=slo_config.CONFIG_NAME, namespace=slo_config.CONFIG_NAMESPACE
        )
    ]

    found = examine(snapshot(objects)).findings

    assert all(is_complete(each) for each in found)
    broken = [key for key, text in data.items() if text and not _is_json(text)]
    reported = " ".join(each.problem for each in found if each.severity is FindingSeverity.ERROR)
    assert all(key in reported for key in broken)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


@settings(max_examples=50, deadline=None)
@given(cpu=AMOUNTS, memory=AMOUNTS, batch=AMOUNTS, time=st.one_of(st.none(), st.text(max_size=8)))
def test_any_amounts_and_times_are_judged(cpu: str, memory: str, batch: str, time: str | None) -> None:
    usage = {"resources": {"cpu": cpu, "memory": memory}}
    objects = healthy()
    objects[NodeMetric] = [
        builders.decoded(
            NodeMetric, {"status": {"updateTime": time, "nodeMetric": {"nodeUsage": usage}}}, name="node-0"
        )
    ]
    amounts = {"cpu": cpu, "kubernetes.io/batch-cpu": batch}
    objects[Node] = [
        builders.decoded(Node, {"status": {"allocatable": amounts, "capacity": amounts}}, name="node-0")
    ]
    objects[Pod].append(
        builders.pod("odd", node_name="", phase="Pending", requests={"kubernetes.io/batch-cpu": batch})
    )
    quota = {"metadata": {"namespace": "default"}, "spec": {"min": {"cpu": cpu}, "max": {"cpu": memory}}}
    objects[ElasticQuota] = [builders.decoded(ElasticQuota, quota, name="odd")]

    assert all(is_complete(each) for each in examine(snapshot(objects)).findings)


@settings(max_examples=50, deadline=None)
@given(body=st.fixed_dictionaries({}, optional={
    "probability": st.one_of(st.integers(-5, 500), st.text(max_size=5)),
    "priorityClassName": st.sampled_from(["koord-batch", "koord-prod", "typo"]),
    "qosClass": st.sampled_from(["BE", "LSR", "strange"]),
    "selector": st.fixed_dictionaries({"matchExpressions": st.lists(
        st.fixed_dictionaries({"key": WORDS, "operator": st.sampled_from(["In", "Exists", "Like"])}), max_size=2
    )}),
    "patch": VALUES,
}))  # fmt: skip
def test_any_profile_is_judged(body: dict[str, Any]) -> None:
    objects = healthy()
    objects[ClusterColocationProfile] = [
        builders.decoded(ClusterColocationProfile, {"spec": {**body, **extra}}, name=name)
        for name, extra in (("a", {}), ("b", {"qosClass": "LS"}))
    ]

    assert all(is_complete(each) for each in examine(snapshot(objects)).findings)
