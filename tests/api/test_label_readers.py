"""Plain labels and annotations, and what is said when they are malformed."""

import pytest

from koordinator.api import gang_labels, labels, node_labels, pod_labels, quota_labels
from koordinator.api.annotations import koordlet, node
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import ResourceList


@pytest.mark.parametrize("text", ["", "+1", "01", "1.0", "2147483648", " 1"])
def test_a_bad_eviction_cost_is_refused_by_name(text: str) -> None:
    with pytest.raises(ProtocolError, match=f"Pod a/b: {labels.EVICTION_COST}: "):
        pod_labels.eviction_cost({labels.EVICTION_COST: text}, "Pod a/b")


def test_an_eviction_priority_is_less_strict() -> None:
    assert pod_labels.eviction_priority({labels.EVICTION_PRIORITY: "+10"}) == 10
    assert pod_labels.eviction_priority({labels.EVICTION_PRIORITY: "008"}) == 8
    assert pod_labels.eviction_priority({}) == 0


def test_the_network_hooks_differ_in_what_they_take_for_granted() -> None:
    annotations = {labels.NETWORK_QOS: '{"ingressLimit":"10M"}'}
    limits = koordlet.network_limits(annotations)
    assert limits == koordlet.NetworkLimits(1_250_000, 0)
    with pytest.raises(ProtocolError):
        koordlet.terway_network_limits(annotations)


def test_a_containers_own_oom_score_wins() -> None:
    annotations = {labels.OOM_SCORE_ADJ: "-500", labels.OOM_SCORE_ADJ_SPEC: '{"main":100,"bad":1001}'}
    assert koordlet.oom_score_adj(annotations, "main") == 100
    assert koordlet.oom_score_adj(annotations, "side") == -500
    with pytest.raises(ProtocolError, match="1001"):
        koordlet.oom_score_adj(annotations, "bad")
    with pytest.raises(ProtocolError):
        koordlet.oom_score_adj({labels.OOM_SCORE_ADJ: "5", labels.OOM_SCORE_ADJ_SPEC: "x"}, "side")


def test_gang_defaults() -> None:
    assert gang_labels.groups({}) == gang_labels.groups({labels.GANG_GROUPS: ""}) == []
    assert gang_labels.mode({labels.GANG_MODE: "nonstrict"}) is gang_labels.GangMode.STRICT
    with pytest.raises(ProtocolError, match="missing"):
        gang_labels.min_available({}, {})


def test_members_with_an_index_come_first_in_its_order() -> None:
    index = labels.GANG_NETWORK_TOPOLOGY_INDEX
    pods = {"a": {}, "b": {index: "10"}, "c": {index: "9"}, "d": {index: "-7"}, "e": {index: "x"}}
    assert sorted(pods, key=lambda name: gang_labels.topology_order(name, pods[name])) == list("cbade")


@pytest.mark.parametrize(
    ("text", "percent"), [("0.29", 28), ("0.57", 56), ("1.5", 150), ("-0.1", None), ("NaN", None)]
)
def test_ratio_labels_are_cut_off_to_percent(text: str, percent: int | None) -> None:
    assert (
        node_labels.ratio_percent({labels.NODE_CPU_RECLAIM_RATIO: text}, labels.NODE_CPU_RECLAIM_RATIO)
        == percent
    )


def test_the_kubelet_can_force_whole_cores() -> None:
    kubelet = node.KubeletCPUManagerPolicy(policy="static", options={"full-pcpus-only": "true"})
    spread = {labels.NODE_CPU_BIND_POLICY: "SpreadByPCPUs"}
    assert node_labels.cpu_bind_policy(spread, kubelet) == "FullPCPUsOnly"
    assert node_labels.cpu_bind_policy(spread, None) == "SpreadByPCPUs"
    assert node_labels.cpu_bind_policy({}, None) == "None"


def test_quota_readers_fall_back_as_documented() -> None:
    spec_max: ResourceList = {"cpu": "10"}
    for text in ("5", "{}", '{"cpu":0}', ""):
        assert quota_labels.shared_weight({labels.QUOTA_SHARED_WEIGHT: text}, spec_max) == spec_max
    assert quota_labels.resource_keys({labels.QUOTA_RESOURCE_KEYS: "cpu"}) == ("cpu", "memory")
    assert quota_labels.resource_keys({labels.QUOTA_RESOURCE_KEYS: '["x"]'}) == ("x",)
    assert quota_labels.parent_name("q", {}) == labels.ROOT_QUOTA_NAME
    assert quota_labels.parent_name(labels.ROOT_QUOTA_NAME, {}) == ""


def test_a_resource_that_is_erased_and_renamed_is_in_both() -> None:
    found = pod_labels.replace_resources({labels.REPLACE_RESOURCES: "a:, a:b, c:d, c:e, x:y:z"})

    assert (found.erase, found.replace) == ({"a"}, {"a": "b", "c": "e"})
