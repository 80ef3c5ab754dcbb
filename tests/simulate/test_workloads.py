"""Services and batch jobs have the sizes that the models promise."""

import json

import numpy as np
import pytest

from koordinator.api import quantity
from koordinator.local.nodes import behaviour
from koordinator.local.nodes.fleet import FleetPolicy
from koordinator.simulate import batch_jobs, services
from koordinator.simulate.run import LOAD_AWARE, scheduler_config
from koordinator.simulate.scenario import Scenario, node_shapes
from koordinator.simulate.services import ServiceMix

SHAPES = node_shapes(Scenario(nodes=100), np.random.default_rng(1))
CPU_MILLI = sum(shape.cpu_milli for shape in SHAPES)
MIX = ServiceMix()


def service_pods() -> list[dict]:
    return services.pods(SHAPES, FleetPolicy(), np.random.default_rng(2), MIX)


def requests(pod: dict) -> dict[str, str]:
    found: dict[str, str] = pod["spec"]["containers"][0]["resources"]["requests"]
    return found


def test_services_request_much_and_use_little() -> None:
    pods = service_pods()
    requested = sum(quantity.milli(requests(pod)["cpu"]) for pod in pods)
    memory = sum(quantity.value(requests(pod)["memory"]) for pod in pods)
    does = [behaviour.decode(pod["metadata"]["annotations"][behaviour.ANNOTATION]) for pod in pods]
    used = sum(d.cpu_milli or 0 for d in does) + FleetPolicy().system_base_milli * len(SHAPES)
    assert requested / CPU_MILLI == pytest.approx(MIX.cpu_requested_ratio, abs=0.02)
    assert memory / sum(s.memory_bytes for s in SHAPES) == pytest.approx(MIX.memory_requested_ratio, abs=0.02)
    assert used / CPU_MILLI == pytest.approx(MIX.cpu_used_ratio, abs=0.005)


def test_utilisation_has_a_heavy_tail() -> None:
    pods = service_pods()
    ratios = []
    for pod in pods:
        does = behaviour.decode(pod["metadata"]["annotations"][behaviour.ANNOTATION])
        ratios.append((does.cpu_milli or 0) / quantity.milli(requests(pod)["cpu"]))
    assert np.mean(ratios) > 1.2 * np.median(ratios)
    assert max(ratios) > 3 * np.mean(ratios)
    assert max(ratios) < 1


def test_some_services_use_most_of_their_node_at_their_peak_unless_nodes_follow_a_trace() -> None:
    pods = [pod for pod in service_pods() if pod["metadata"]["name"].startswith("pressed")]
    followers = services.pods(SHAPES, FleetPolicy(), np.random.default_rng(2), MIX, follows_trace=True)

    assert len(pods) == 10
    for pod in pods:
        does = behaviour.decode(pod["metadata"]["annotations"][behaviour.ANNOTATION])
        [cores] = [s.cpu_milli for s in SHAPES if s.instance_type in pod["spec"]["nodeSelector"].values()][:1]
        assert 0.55 <= (does.cpu_milli or 0) * (1 + does.daily_amplitude_ratio) / cores <= 0.81
    assert not any(pod["metadata"]["name"].startswith("pressed") for pod in followers)


def test_names_are_unique_and_the_seed_decides_everything() -> None:
    pods = service_pods()
    assert len({pod["metadata"]["name"] for pod in pods}) == len(pods)
    assert json.dumps(pods) == json.dumps(service_pods())


def test_the_batch_stream_wants_the_cores_it_is_asked_for() -> None:
    wanted = 0.0
    for seed in range(8):
        jobs = batch_jobs.stream(1_000, 24, np.random.default_rng(seed))
        wanted += sum(task.work_core_s for job in jobs for stage in job.stages for task in stage) / (
            24 * 3_600
        )
    assert wanted / 8 == pytest.approx(1_000, rel=0.1)


def test_jobs_arrive_in_order_within_the_day_and_stay_small() -> None:
    jobs = batch_jobs.stream(100, 6, np.random.default_rng(1))
    arrivals = [job.arrives_s for job in jobs]
    assert arrivals == sorted(arrivals)
    assert arrivals[0] >= 0 and arrivals[-1] < 6 * 3_600
    assert {job.kind for job in jobs} == {"spark", "transcode", "train"}
    assert len({job.name for job in jobs}) == len(jobs)
    for job in jobs:
        for stage in job.stages:
            assert sum(task.cpu_milli for task in stage) <= max(100_000 * 0.1, stage[0].cpu_milli)


def test_load_awareness_is_a_matter_of_the_configuration() -> None:
    def points(*, load_aware: bool) -> set[str]:
        plugins = scheduler_config(load_aware=load_aware).profiles[0].plugins
        assert plugins is not None
        return {
            point
            for point in plugins.__struct_fields__
            if any(ref.name == LOAD_AWARE for ref in getattr(plugins, point).enabled)
        }

    assert points(load_aware=True) == {"filter", "score", "reserve"}
    assert points(load_aware=False) == set()
