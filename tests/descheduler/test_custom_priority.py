"""CustomPriority: how a node is drained when only some of its pods may go now, and what counts as room."""

from typing import Any

import msgspec
import pytest

from koordinator.api.core import Node, Pod
from koordinator.descheduler.measurements import Observation
from koordinator.descheduler.plugin import Action, EvictAction
from koordinator.descheduler.plugins.built_in import BUILT_IN
from koordinator.descheduler.plugins.custom_priority import CustomPriority
from tests.descheduler.builders import NOW_S, handle, node, pod
from tests.vectors.adapters.descheduler_plugins import drive

ORDER = [{"name": tier, "nodeSelector": {"matchLabels": {"tier": tier}}} for tier in ("gold", "silver")]


def of_tier(tier: str, name: str, **spec: Any) -> Node:
    plain = node(name, **spec)
    metadata = msgspec.structs.replace(plain.metadata, labels={"tier": tier})
    return msgspec.structs.replace(plain, metadata=metadata)


def drained(pods: list[Pod], refused: str = "", most: int = 9) -> list[str]:
    """What is done to drain `dear` to `cheap` (4 cores), in order; the filter lets `most` pods go at a time."""
    args = BUILT_IN["CustomPriority"].read({"evictionOrder": ORDER, "mode": "DrainNode", "autoCordon": True})
    nodes = [of_tier("gold", "dear"), of_tier("silver", "cheap", cpu="4")]
    done: list[str] = []

    def may_evict(_: Pod) -> bool:
        return sum(name not in ("cordon", "uncordon") for name in done) < most

    def accept(wanted: Action) -> bool:
        if isinstance(wanted, EvictAction):
            name = wanted.pod.metadata.name
            if name != refused:
                done.append(name)
            return name != refused
        done.append("cordon" if getattr(wanted, "cordoned", False) else "uncordon")
        return True

    seen = Observation(NOW_S, nodes, {"dear": pods, "cheap": []}, {})
    drive(CustomPriority(args, handle(may_evict)).balance(seen), accept)
    return done


def test_a_drain_goes_on_later_with_pods_that_may_not_go_beside_those_on_their_way() -> None:
    pods = [pod(name, "dear", cpu="1") for name in "abc"]
    assert drained(pods, most=2) == ["cordon", "a", "b"]


def test_an_eviction_that_fails_ends_the_drain_and_the_node_is_open_again() -> None:
    pods = [pod(name, "dear", cpu="1") for name in "abc"]
    assert drained(pods, refused="b") == ["cordon", "a", "uncordon"]


@pytest.mark.parametrize(("overhead", "cpu", "is_drained"), [("500m", "1", True), ("0", "2", False)])
def test_pods_share_the_room_by_what_their_containers_request(
    overhead: str, cpu: str, is_drained: bool
) -> None:
    pods = [pod(name, "dear", cpu=cpu, overhead={"cpu": overhead}) for name in "abc"]
    assert drained(pods) == (["cordon", "a", "b", "c"] if is_drained else [])
