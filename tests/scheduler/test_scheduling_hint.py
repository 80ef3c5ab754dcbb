"""Pods go where another scheduler advised, as long as the filters agree."""

import json
from typing import Any

import pytest

from koordinator.scheduler.config import config
from koordinator.scheduler.config.config import SchedulerConfigError
from koordinator.scheduler.plugins.pod_rules import SchedulingHint, SchedulingHintArgs
from tests.scheduler.extending import Desk
from tests.scheduler.world import pod

KEY = "internal.scheduling.koordinator.sh/scheduling-hint"
OLD_KEY = "scheduling.koordinator.sh/scheduling-hint"


def hinted(key: str = KEY, **hint: Any) -> dict[str, Any]:
    found = pod("p")
    found["metadata"]["annotations"] = {key: json.dumps(hint)}
    return found


def desk(**options: Any) -> Desk:
    """a is emptiest, full is too small."""
    return Desk(**options).nodes("a", cpu="64").nodes("b", "c", cpu="4").nodes("full", cpu="500m")


@pytest.mark.parametrize("key", [KEY, OLD_KEY])
def test_only_the_named_nodes_come_into_question(key: str) -> None:
    assert desk().place(hinted(key, nodeNames=["c"])) == "c"


def test_a_pod_whose_named_nodes_do_not_fit_is_refused_and_told_so() -> None:
    found = desk().refuse(hinted(nodeNames=["full"]))
    assert found.status.message.startswith(
        "0/4 nodes are available: 1 Insufficient cpu, 3 node(s) didn't satisfy plugin(s) [SchedulingHint]."
    )


@pytest.mark.parametrize(
    ("preferred", "required", "node"),
    [
        pytest.param(["c", "b"], [], "c", id="the first one"),
        pytest.param(["gone", "full", "b"], [], "b", id="those that do not do are passed over"),
        pytest.param(["full"], [], "a", id="none does: the best of all"),
        pytest.param(["c"], ["a", "b"], "a", id="one that is not required is no candidate"),
        pytest.param(["c", "b"], ["a", "b"], "b", id="the first of those required"),
    ],
)
def test_preferred_nodes_are_tried_in_order(preferred: list[str], required: list[str], node: str) -> None:
    assert desk().place(hinted(preferredNodeNames=preferred, nodeNames=required)) == node


def test_no_more_preferred_nodes_are_tried_than_configured() -> None:
    wanted = hinted(preferredNodeNames=["gone", "full", "c"])
    found = desk()
    found.plugin("SchedulingHint")._nodes_max = 2
    assert found.place(wanted) == "a"


def test_a_hint_that_cannot_be_read_is_an_error_that_names_the_annotation() -> None:
    wanted = pod("p")
    wanted["metadata"]["annotations"] = {KEY: "{"}
    found = desk().refuse(wanted)
    assert not found.status.is_rejected
    assert found.status.plugin == "SchedulingHint"
    assert "Pod default/p" in found.status.message
    assert KEY in found.status.message


def test_pods_without_a_hint_share_one_evaluation() -> None:
    found = desk()
    found.place(pod("x"))
    found.place(pod("y"))
    assert found.engine.cache.hit_count == 1
    assert found.plugin("SchedulingHint").prepare(found.info(pod("z"))) is None


@pytest.mark.parametrize("nodes", [0, -1])
def test_the_number_of_hint_nodes_must_be_positive(nodes: int) -> None:
    with pytest.raises(SchedulerConfigError, match="maxHintNodes"):
        config.decode_args(SchedulingHint.name, {"maxHintNodes": nodes}, SchedulingHintArgs)
