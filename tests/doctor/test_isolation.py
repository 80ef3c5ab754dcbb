"""What agents found without effect is told by node."""

from koordinator.api.core import Node
from koordinator.api.isolation import NODE_ISOLATION, MechanismState, NodeIsolation
from koordinator.doctor.checks.all import examine
from koordinator.doctor.finding import FindingSeverity
from tests.doctor import builders
from tests.doctor.builders import healthy, snapshot


def with_result(**states: str) -> Node:
    found = NodeIsolation(
        mechanisms={
            name.replace("_", "-"): MechanismState(state=state, why="measured")
            for name, state in states.items()
        }
    )
    return builders.node(annotations={NODE_ISOLATION.key: NODE_ISOLATION.encode(found)})


def test_broken_mechanisms_are_errors_and_unknown_ones_are_not() -> None:
    objects = healthy()
    objects[Node] = [with_result(cpu_quota="broken", io_limit="unknown", cpuset="works")]

    (found,) = examine(snapshot(objects), ["isolation"]).findings

    assert found.severity is FindingSeverity.ERROR and "cpu-quota has no effect: measured" in found.problem


def test_nodes_that_prove_all_or_tell_nothing_are_well() -> None:
    objects = healthy()
    assert not examine(snapshot(objects), ["isolation"]).findings
    objects[Node] = [with_result(cpu_quota="works")]
    assert not examine(snapshot(objects), ["isolation"]).findings
