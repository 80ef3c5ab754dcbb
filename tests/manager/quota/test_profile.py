"""Quota profiles: the quota follows the nodes, and nothing is written when it does."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import labels, quantity
from koordinator.api.core import Node
from koordinator.api.decode import from_builtins
from koordinator.api.errors import ProtocolError
from koordinator.api.groups import ElasticQuotaProfile
from koordinator.api.sigs import ElasticQuota
from koordinator.manager.quota import profile, profile_controller
from koordinator.manager.quota.profile import WantedQuota


def profile_of(ratio: str | None = None, **spec: Any) -> ElasticQuotaProfile:
    body = {"quotaName": "root", "nodeSelector": {"matchLabels": {"pool": "a"}}, **spec}
    if ratio is not None:
        body["resourceRatio"] = ratio
    return from_builtins({"metadata": {"name": "p", "namespace": "ns"}, "spec": body}, ElasticQuotaProfile)


def node(cpu: int = 10, *, pool: str = "a", ready: bool = True, cordoned: bool = False) -> Node:
    return from_builtins(
        {
            "metadata": {"name": "n", "labels": {"pool": pool}},
            "spec": {"unschedulable": cordoned},
            "status": {
                "allocatable": {"cpu": f"{cpu}m", "memory": f"{cpu}Ki"},
                "conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}],
            },
        },
        Node,
    )


def wanted_quota(given: ElasticQuotaProfile, nodes: list[Node]) -> WantedQuota:
    return profile.wanted_quota(given, *profile_controller.totals_of(nodes, given.spec.node_selector))


def renamed(found: Node, name: str) -> Node:
    return msgspec.structs.replace(found, metadata=msgspec.structs.replace(found.metadata, name=name))


NODES = st.lists(
    st.builds(
        node,
        cpu=st.integers(0, 10_000),
        pool=st.sampled_from("ab"),
        ready=st.booleans(),
        cordoned=st.booleans(),
    ),
    max_size=6,
).map(lambda nodes: [renamed(each, f"n{number}") for number, each in enumerate(nodes)])


@given(nodes=NODES, ratio=st.sampled_from([None, "1", "0.5", "0.001", "2", "x"]))
def test_a_tree_gets_its_share_of_exactly_its_nodes(nodes: list[Node], ratio: str | None) -> None:
    wanted = wanted_quota(profile_of(ratio), nodes)

    share = {"0.5": 0.5, "0.001": 0.001}.get(ratio or "", 1.0)
    mine = [n for n in nodes if n.metadata.labels["pool"] == "a"]
    total_milli = sum(quantity.milli(n.status.allocatable["cpu"]) for n in mine)
    assert quantity.milli(wanted.min["cpu"]) == int(total_milli * share)
    total, idle = (
        msgspec.json.decode(wanted.annotations[key])
        for key in (labels.QUOTA_TOTAL_RESOURCE, labels.QUOTA_UNSCHEDULABLE_RESOURCE)
    )
    assert all(quantity.of(idle[name]) <= quantity.of(total[name]) for name in idle)


@given(nodes=NODES, before=NODES)
def test_a_patched_quota_needs_no_other_patch(nodes: list[Node], before: list[Node]) -> None:
    wanted = wanted_quota(profile_of(), nodes)
    old = profile.new_quota(wanted_quota(profile_of(quotaLabels={"kept": "yes"}), before))

    patch = profile.quota_patch(wanted, from_builtins(old, ElasticQuota))
    for part in ("metadata", "spec"):
        for field, changes in patch.get(part, {}).items():
            old[part][field].update(changes)

    assert profile.quota_patch(wanted, from_builtins(old, ElasticQuota)) == {}
    assert old["metadata"]["labels"]["kept"] == "yes"


def test_resources_that_are_no_longer_counted_leave_the_quota() -> None:
    wanted = wanted_quota(profile_of(), [node()])
    old = profile.new_quota(wanted)
    old["spec"]["min"]["gone"] = "1"

    assert profile.quota_patch(wanted, from_builtins(old, ElasticQuota)) == {"spec": {"min": {"gone": None}}}


def test_an_amount_that_is_written_otherwise_needs_no_patch() -> None:
    wanted = wanted_quota(profile_of(), [node(3000)])
    old = profile.new_quota(wanted)
    old["spec"]["min"]["cpu"], other = "3000m", {"cpu": "3001m"}

    assert wanted.min["cpu"] == "3"
    assert profile.quota_patch(wanted, from_builtins(old, ElasticQuota)) == {}
    old["spec"]["min"].update(other)
    assert profile.quota_patch(wanted, from_builtins(old, ElasticQuota)) == {"spec": {"min": {"cpu": "3"}}}


def test_labels_of_the_tree_cannot_be_overridden_but_that_of_the_profile_can() -> None:
    given_labels = {labels.QUOTA_IS_ROOT: "false", labels.QUOTA_TREE_ID: "x", labels.QUOTA_PROFILE: "mine"}

    wanted = wanted_quota(profile_of(quotaLabels=given_labels), [])

    assert wanted.labels[labels.QUOTA_IS_ROOT] == "true"
    assert wanted.labels[labels.QUOTA_TREE_ID] == wanted.tree_id != "x"
    assert wanted.labels[labels.QUOTA_PROFILE] == "mine"


def test_a_tree_id_is_noted_once() -> None:
    fresh = profile_of()
    patch = profile.profile_patch(fresh)

    noted = msgspec.structs.replace(
        fresh, metadata=msgspec.structs.replace(fresh.metadata, labels=patch["metadata"]["labels"])
    )
    assert profile.profile_patch(noted) == {}
    assert profile.tree_id(noted) == profile.tree_id(fresh)


def test_hash_is_the_published_one() -> None:
    # Test vectors of the FNV authors (draft-eastlake-fnv).
    assert profile.fnv1a_64(b"") == 0xCBF29CE484222325
    assert profile.fnv1a_64(b"foobar") == 0x85944171F73967E8


def test_an_invalid_selector_is_an_error() -> None:
    broken = profile_of(nodeSelector={"matchExpressions": [{"key": "a", "operator": "In"}]})

    with pytest.raises(ProtocolError, match="needs values"):
        wanted_quota(broken, [node()])
