"""Volumes that are labelled with a zone are used there, under the old name of the label and the new one."""

from typing import Any

import numpy as np
import pytest

from koordinator.api.core import Node
from koordinator.api.decode import from_builtins
from koordinator.api.storage import PersistentVolume, PersistentVolumeClaim
from tests.scheduler.test_volume_limits import Counted
from tests.scheduler.test_volumes import claim
from tests.scheduler.world import node

NEW, OLD = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"


@pytest.mark.parametrize(
    ("key", "labels", "fits"),
    [
        pytest.param(NEW, {}, True, id="a node without zones"),
        pytest.param(NEW, {NEW: "a"}, True, id="in the zone"),
        pytest.param(NEW, {NEW: "b"}, False, id="in another one"),
        pytest.param(NEW, {"topology.kubernetes.io/region": "r"}, False, id="a region only"),
        pytest.param(OLD, {OLD: "a"}, True, id="both say it the old way"),
        pytest.param(OLD, {NEW: "a"}, True, id="the node says it the new way"),
        pytest.param(OLD, {NEW: "b"}, False, id="the new way, another one"),
        pytest.param(OLD, {OLD: "b", NEW: "a"}, False, id="the old way comes first"),
        pytest.param(NEW, {OLD: "a"}, False, id="a volume's new label is not looked for under the old name"),
    ],
)
def test_a_volume_with_a_zone_is_used_there(key: str, labels: dict[str, str], fits: bool) -> None:
    plugin, state, row = asked(key, labels)

    [code] = plugin.filter(state, np.array([row], np.intp)).tolist()

    assert (code == 0) is fits


def asked(key: str, labels: dict[str, str]) -> tuple[Any, Any, int]:
    """The plugin, what it knows of a pod whose volume is in zone a, and the row of a node."""
    counted = Counted()
    [profile] = counted.engine.profiles.values()
    plugin: Any = next(each for each in profile.plugins if each.name == "VolumeZone")
    counted.engine.table.set_node(from_builtins(node("n0", labels=labels), Node))
    counted.deliver(PersistentVolume, {"metadata": {"name": "v0", "labels": {key: "a"}}, "spec": {}})
    counted.deliver(PersistentVolumeClaim, claim("c0", volumeName="v0"))

    row = counted.engine.table.row_of("n0")
    assert row is not None
    return plugin, plugin.prepare(counted.user("new", "c0")), row


@pytest.mark.parametrize(
    ("key", "labels", "has"),
    [
        pytest.param(NEW, {NEW: "b"}, "b", id="the new way"),
        pytest.param(OLD, {OLD: "b"}, "b", id="the old way"),
        pytest.param(OLD, {NEW: "b"}, "b", id="the node says it the new way"),
        pytest.param(OLD, {OLD: "b", NEW: "a"}, "b", id="the old way comes first"),
        pytest.param(
            NEW, {OLD: "b"}, "nothing", id="a volume's new label is not looked for under the old name"
        ),
        pytest.param(NEW, {}, "nothing", id="a node without zones"),
        pytest.param(OLD, {}, "nothing", id="a node without zones, the old way"),
    ],
)
def test_the_zone_that_is_told_is_the_one_that_was_compared(
    key: str, labels: dict[str, str], has: str
) -> None:
    plugin, state, row = asked(key, labels)

    assert plugin.facts(state, row) == (f"a volume needs {key} in a; the node has {has}",)
