"""GPU requests in one form, and pods bound to the nodes of their quota's tree."""

from copy import deepcopy
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api import labels, resources
from koordinator.api.affinity import LabelSelector
from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.groups import ElasticQuotaProfile
from koordinator.api.sigs import ElasticQuota
from koordinator.manager.quota.tree import QuotaTree, quota_info
from koordinator.manager.webhooks import pod_quotas

AMOUNTS = st.dictionaries(
    st.sampled_from(
        ["cpu", resources.GPU, resources.GPU_CORE, resources.GPU_MEMORY_RATIO, resources.GPU_SHARED]
    ),
    st.integers(0, 500).map(str),
)
NEEDS = st.fixed_dictionaries({}, optional={"requests": AMOUNTS, "limits": AMOUNTS})


def pod_of(needs: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "resources": needs}]}}


@given(needs=NEEDS)
def test_a_normal_form_is_its_own_normal_form_and_the_input_is_kept(needs: dict[str, Any]) -> None:
    pod = pod_of(needs)
    before = deepcopy(pod)

    normal = pod_quotas.normalize_gpus(pod)

    assert pod == before
    assert pod_quotas.normalize_gpus(normal) == normal
    requests = normal["spec"]["containers"][0]["resources"].get("requests", {})
    assert resources.GPU not in requests


def test_a_pod_without_limits_gets_them() -> None:
    normal = pod_quotas.normalize_gpus(pod_of({"requests": {resources.GPU: "50"}}))

    found = normal["spec"]["containers"][0]["resources"]
    assert found["limits"] == found["requests"]
    assert found["requests"] == {
        resources.GPU_CORE: "50",
        resources.GPU_MEMORY_RATIO: "50",
        resources.GPU_SHARED: "1",
    }


def test_a_part_of_a_percent_is_a_whole_one() -> None:
    normal = pod_quotas.normalize_gpus(pod_of({"requests": {resources.GPU: "500m"}}))

    found = normal["spec"]["containers"][0]["resources"]["requests"]
    assert found[resources.GPU_CORE] == found[resources.GPU_MEMORY_RATIO] == "1"


def test_pods_without_gpus_are_the_same_object() -> None:
    pod = pod_of({"requests": {"cpu": "1"}})

    assert pod_quotas.normalize_gpus(pod) is pod


def quota(tree: str) -> ElasticQuota:
    metadata = {
        "name": "q",
        "namespace": "quotas",
        "labels": {labels.QUOTA_TREE_ID: tree},
        "annotations": {labels.QUOTA_NAMESPACES: '["d"]'},
    }
    return from_builtins({"metadata": metadata}, ElasticQuota)


def profile(name: str, tree: str, selector: dict[str, Any]) -> ElasticQuotaProfile:
    metadata = {"name": name, "namespace": "d", "labels": {labels.QUOTA_TREE_ID: tree}}
    body = {"metadata": metadata, "spec": {"quotaName": "q", "nodeSelector": selector}}
    return from_builtins(body, ElasticQuotaProfile)


def inject(profiles: list[ElasticQuotaProfile], found: ElasticQuota | None) -> dict[str, Any]:
    tree = QuotaTree()
    if found is not None:
        tree.put(quota_info(found))
    nodes = pod_quotas.nodes_of_quota(
        tree,
        {},
        "d",
        lambda name: [each for each in profiles if each.metadata.labels[labels.QUOTA_TREE_ID] == name],
    )
    return pod_quotas.inject_nodes(pod_of({}), nodes)


def terms(pod: dict[str, Any]) -> Any:
    affinity = pod["spec"]["affinity"]["nodeAffinity"]
    return affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]


def test_the_first_profile_of_the_tree_by_name_says_the_nodes() -> None:
    first = profile("a", "t", {"matchLabels": {"zone": "1", "arch": "x"}})
    others = [
        profile("b", "t", {"matchLabels": {"zone": "2"}}),
        profile("0", "u", {"matchLabels": {"z": "3"}}),
    ]

    bound = inject([*others, first], quota("t"))

    assert terms(bound) == [
        {
            "matchExpressions": [
                {"key": "arch", "operator": "In", "values": ["x"]},
                {"key": "zone", "operator": "In", "values": ["1"]},
            ]
        }
    ]


def test_a_pod_stays_free_without_quota_tree_profile_or_selector() -> None:
    of_tree = profile("a", "t", {"matchLabels": {"zone": "1"}})

    for profiles, found in (
        ([of_tree], None),
        ([of_tree], quota("")),
        ([of_tree], quota("other")),
        ([profile("a", "t", {})], quota("t")),
    ):
        assert inject(profiles, found) == pod_of({})


ANY = st.recursive(
    st.none() | st.integers(0, 2) | st.sampled_from(["", "x"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["key", "a"]), inner, max_size=2)
    ),
    max_leaves=3,
)
TERM = st.fixed_dictionaries(
    {}, optional={"matchExpressions": st.lists(ANY, max_size=2) | ANY, "matchFields": ANY}
)
REQUIRED = (
    st.fixed_dictionaries({}, optional={"nodeSelectorTerms": st.lists(TERM | ANY, max_size=2) | ANY}) | ANY
)
AFFINITY = st.fixed_dictionaries(
    {},
    optional={
        "nodeAffinity": st.fixed_dictionaries(
            {}, optional={"requiredDuringSchedulingIgnoredDuringExecution": REQUIRED}
        )
        | ANY
    },
)


@settings(max_examples=50)
@given(spec=st.fixed_dictionaries({}, optional={"affinity": AFFINITY | ANY}))
def test_whatever_affinity_a_pod_has_every_alternative_of_it_gets_the_nodes(spec: dict[str, Any]) -> None:
    pod = {"metadata": {}, "spec": spec}
    try:
        from_builtins(pod, Pod)
    except msgspec.ValidationError:
        return  # refused before
    nodes = from_builtins({"matchLabels": {"zone": "1"}}, LabelSelector)

    bound = pod_quotas.inject_nodes(pod, nodes)

    wanted = {"key": "zone", "operator": "In", "values": ["1"]}
    assert all(term["matchExpressions"][-1] == wanted for term in terms(bound)) and terms(bound)
    assert from_builtins(bound, Pod)
