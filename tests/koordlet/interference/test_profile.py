"""What is usual for a workload: learnt, merged over nodes, and told from what is not."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import decode, workload_profile
from koordinator.api.meta import OwnerReference
from koordinator.api.workload_profile import Moments
from koordinator.koordlet.interference import counters
from koordinator.koordlet.interference.counters import Violations
from tests.koordlet.qos.acting_node import make_pod

VALUES = st.lists(st.floats(0.1, 10.0), min_size=1, max_size=50)


def moments(values: list[float]) -> Moments:
    found = Moments()
    for value in values:
        found = counters.learnt(found, value, 0.0)
    return found


@given(first=VALUES, second=VALUES)
def test_two_nodes_together_know_what_one_would_that_saw_all(first: list[float], second: list[float]) -> None:
    found = workload_profile.merged([moments(first), moments(second)])

    assert found is not None
    assert found.weight == pytest.approx(len(first) + len(second))
    assert found.mean == pytest.approx(statistics.fmean(first + second))
    assert found.variance == pytest.approx(statistics.pvariance(first + second), abs=1e-9)


@given(values=VALUES)
def test_old_samples_fade(values: list[float]) -> None:
    found = counters.learnt(moments(values), 5.0, 100 * counters.HALF_LIFE_S)

    assert found.mean == pytest.approx(5.0, rel=1e-6)
    assert found.weight == pytest.approx(1.0)


def test_three_violations_within_five_minutes_make_an_outlier() -> None:
    known = Moments(weight=1000, mean=1.0, variance=0.01)
    level = counters.profile_level(known, 1.3)
    assert level == pytest.approx(1.5)
    violations = Violations()

    levels = [violations.level(1.5, cores=1.0, now_s=at_s) for at_s in (0, 100, 200)]
    assert levels == [0.99, 0.99, 1.5]
    assert violations.level(1.5, cores=1.0, now_s=700) == 0.99  # two of the three are too old


def test_young_profiles_and_containers_that_hardly_run_say_nothing() -> None:
    assert counters.profile_level(Moments(weight=5, mean=1.0, variance=0.01), 3.0) is None
    violations = Violations()
    assert [violations.level(3.0, cores=0.1, now_s=at_s) for at_s in range(4)] == [0.99] * 4


def test_pods_of_a_deployment_are_one_workload() -> None:
    pod = make_pod("web-abc12-x", labels={"pod-template-hash": "abc12"})
    assert counters.workload_of(pod) == "n/Pod/web-abc12-x"
    owner = {"kind": "ReplicaSet", "name": "web-abc12", "controller": True}
    pod.metadata.owner_references.append(decode.from_builtins(owner, OwnerReference))
    assert counters.workload_of(pod) == "n/Deployment/web"
