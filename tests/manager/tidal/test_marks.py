"""Marks on nodes: what is written is read again, once, and nothing of others is touched."""

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import labels
from koordinator.api.core import Node
from koordinator.api.decode import from_builtins
from koordinator.manager.tidal import marks as node_marks
from koordinator.manager.tidal.marks import TAINTS, NodeMarks
from koordinator.manager.tidal.nodes import Side, TidalPhase

times = st.integers(1, 2_000_000_000).map(float)
marks = st.builds(
    NodeMarks,
    pool=st.sampled_from(["night", "day"]),
    phase=st.sampled_from(TidalPhase),
    since_s=times,
    reserve=st.sampled_from([None, *Side]),
    reason=st.sampled_from(["", "because"]),
    blocked_until_s=st.just(0.0) | times,
    return_at_s=st.just(0.0) | times,
    has_katalyst=st.booleans(),
)
OTHERS = [{"key": "gpu", "value": "a100", "effect": "NoExecute", "timeAdded": "2026-03-01T10:00:00Z"}]


def patched(body: dict[str, Any], wanted: NodeMarks | None) -> dict[str, Any]:
    """The node after our patch."""
    patch = node_marks.patch(from_builtins(body, Node), wanted)
    after = copy.deepcopy(body)
    for part in ("labels", "annotations"):
        changes = (patch or {}).get("metadata", {}).get(part, {})
        merged = {**after["metadata"][part], **changes}
        after["metadata"][part] = {key: text for key, text in merged.items() if text is not None}
    after["spec"] |= (patch or {}).get("spec", {})
    return after


@given(first=marks, second=st.none() | marks, theirs=st.sampled_from([None, "true", "false"]))
def test_a_node_says_what_is_wanted_and_keeps_what_others_say(
    first: NodeMarks, second: NodeMarks | None, theirs: str | None
) -> None:
    notes = {"a": "b"} | ({labels.SCALE_DOWN_DISABLED: theirs} if theirs else {})
    body = {
        "metadata": {"name": "n", "uid": "u", "labels": {"pool": "web"}, "annotations": notes},
        "spec": {"taints": list(OTHERS)},
    }

    after = patched(patched(body, first), second)

    node = from_builtins(after, Node)
    assert NodeMarks.of(node) == (NodeMarks() if second is None else second)
    assert node_marks.patch(node, second) is None, "what is said already is not written again"
    if second is None:
        assert after == body
    is_lent = second is not None and second.phase in (TidalPhase.TO_BATCH, TidalPhase.BATCH)
    said = after["metadata"]["annotations"].get(labels.SCALE_DOWN_DISABLED)
    assert said == (theirs or ("true" if is_lent else None)), "the cluster autoscaler keeps lent nodes"
    ours = [taint["key"] for taint in after["spec"]["taints"] if taint["key"] in TAINTS]
    assert len(ours) == (second is not None and second.phase is not TidalPhase.ONLINE)
    assert after["spec"]["taints"][0] == OTHERS[0]


def test_a_label_that_nobody_wrote_like_this_counts_as_online() -> None:
    said = {labels.TIDAL_POOL: "night", labels.TIDAL_PHASE: "dusk"}
    body = {"metadata": {"name": "n", "labels": said, "annotations": {labels.TIDAL_SINCE: "soon"}}}
    assert NodeMarks.of(from_builtins(body, Node)) == NodeMarks(pool="night")
