"""Typos in annotations are told when they are written, by field and reason, and only when they are new."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import labels, node_labels
from koordinator.manager.webhooks import pod_rules


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [
        pytest.param(
            labels.RESOURCE_SPEC, '{"preferredCPUBindPolicy": 7}', "preferredCPUBindPolicy", id="type"
        ),
        pytest.param(labels.DEVICE_ALLOCATE_HINT, "{", "not JSON", id="no JSON"),
        pytest.param(labels.GANG_MIN_AVAILABLE, "three", "three", id="no number"),
        pytest.param(
            labels.NETWORK_QOS, '{"IngressLimit": "fast", "EgressLimit": "1M"}', "fast", id="no amount"
        ),
    ],
)
def test_a_malformed_annotation_of_a_pod_is_named(key: str, text: str, words: str) -> None:
    (warning,) = pod_rules.pod_warnings({key: text, "other": "{"}, {})

    assert warning.startswith(f"metadata.annotations[{key}]: ") and words in warning
    assert pod_rules.pod_warnings({key: text}, {key: text}) == ()


def test_a_node_is_told_of_annotations_and_labels() -> None:
    annotations = {labels.NODE_COLOCATION_STRATEGY: '{"enable": "yes"}', labels.NODE_NETWORK_BANDWIDTH: "10G"}
    own = {labels.NODE_CPU_RECLAIM_RATIO: "60%", labels.NODE_MEMORY_RECLAIM_RATIO: "0.6"}

    found = pod_rules.node_warnings(annotations, {}, own, {})

    assert [warning.split(":")[0] for warning in found] == [
        f"metadata.annotations[{labels.NODE_COLOCATION_STRATEGY}]",
        f"metadata.labels[{labels.NODE_CPU_RECLAIM_RATIO}]",
    ]
    assert pod_rules.node_warnings(annotations, annotations, own, own) == ()


TEXTS = st.sampled_from(
    ["", "{", "{}", "[]", "null", "7", "x", '{"cpu": "1"}', '["a"]', "-1", "1e308", "NaN"]
)
KEYS = st.sampled_from(
    [value for name, value in vars(labels).items() if name.isupper() and "/" in str(value)]
)


@given(annotations=st.dictionaries(KEYS, TEXTS | st.text(max_size=4), max_size=8))
def test_whatever_is_written_the_answer_is_a_list_of_words(annotations: dict[str, str]) -> None:
    for warnings in (
        pod_rules.pod_warnings(annotations, {}),
        pod_rules.node_warnings(annotations, {}, annotations, {}),
    ):
        assert all(warning.startswith("metadata.") for warning in warnings)


@pytest.mark.parametrize(
    ("text", "percent"), [("1e308", None), ("inf", None), ("NaN", None), ("1e15", 10**17)]
)
def test_an_absurd_ratio_is_no_ratio(text: str, percent: int | None) -> None:
    key = labels.NODE_CPU_RECLAIM_RATIO
    assert node_labels.ratio_percent({key: text}, key) == percent
