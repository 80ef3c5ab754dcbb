"""How a pod is evicted, and when old jobs are swept."""

import json

import msgspec
import pytest

from koordinator.api import labels
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.pod_migration import DeleteOptions, PodMigrationJob
from koordinator.descheduler.config import low_node_load
from koordinator.descheduler.migration import state
from koordinator.descheduler.plugins.built_in import BUILT_IN
from tests.descheduler.builders import NOW_S, job, pod


def with_policy(one: Pod | PodMigrationJob, name: str) -> Pod | PodMigrationJob:
    own = {labels.EVICT_POLICY: name} if name else {}
    return msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, labels=own))


@pytest.mark.parametrize(
    ("of_pod", "of_job", "expected"),
    [
        ("", "", "Eviction"),
        ("Delete", "SoftEviction", "Delete"),
        ("", "SoftEviction", "SoftEviction"),
        ("Nonsense", "Delete", "Eviction"),
    ],
)
def test_the_pods_policy_wins_over_the_jobs(of_pod: str, of_job: str, expected: str) -> None:
    target = with_policy(pod("p"), of_pod)
    assert isinstance(target, Pod)
    order = with_policy(job("j", target), of_job)
    assert isinstance(order, PodMigrationJob)
    assert state.policy(target, order, "Eviction") == expected


def test_a_soft_eviction_says_who_asks_and_why() -> None:
    one = job("j", pod("p"))
    annotations = {labels.EVICT_TRIGGER: "LowNodeLoad"}
    one = msgspec.structs.replace(
        one, metadata=msgspec.structs.replace(one.metadata, annotations=annotations)
    )
    body = json.loads(state.soft_eviction(one, None, NOW_S))
    assert body == {"timestamp": "2023-11-14T22:13:20Z", "initiator": "LowNodeLoad", "reason": "LowNodeLoad"}
    assert "initiator" not in json.loads(state.soft_eviction(job("j", pod("p")), None, NOW_S))
    options = DeleteOptions(grace_period_seconds=7)
    assert json.loads(state.soft_eviction(one, options, NOW_S))["deleteOptions"] == {"gracePeriodSeconds": 7}


@pytest.mark.parametrize(("ttl", "limit_s"), [("10m", 900), (None, 1800), ("0s", 1800), ("soon", 1800)])
def test_a_job_is_swept_when_it_is_long_past_its_ttl(ttl: str | None, limit_s: int) -> None:
    one = job("j", pod("p"), ttl=ttl)
    assert not state.is_scavenged(one, NOW_S + limit_s - 1)
    assert state.is_scavenged(one, NOW_S + limit_s)


def test_an_argument_that_nobody_knows_is_named() -> None:
    with pytest.raises(ProtocolError, match=r"LowNodeLoad: .*unknown field `hightThresholds`"):
        BUILT_IN["LowNodeLoad"].read({"hightThresholds": {"cpu": 80}})
    with pytest.raises(ProtocolError, match="unknown field `weight`"):
        BUILT_IN["LowNodeLoad"].read({"nodePools": [{"name": "p", "weight": 1}]})
    with pytest.raises(ProtocolError, match="MigrationController: maxMigratingPerNode"):
        BUILT_IN["MigrationController"].read({"maxMigratingPerNode": -1})
    with pytest.raises(ProtocolError, match="kind"):
        BUILT_IN["LowNodeLoad"].read({"kind": "CustomPriorityArgs"})


def test_detectors_are_kept_from_one_cycle_to_the_next() -> None:
    args = BUILT_IN["LowNodeLoad"].read({"detectorCacheTimeout": "1m", "nodePools": None})
    assert low_node_load.remembered_for(args, 600).detector_cache_timeout == "10m0s"
    assert low_node_load.remembered_for(args, 0).detector_cache_timeout == "1m"
