"""Whole-pod amounts."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import decode, pod_resources, qos, quantity, resource_list
from koordinator.api.core import Pod
from koordinator.api.qos import KubeQoS, QoSClass


def pod(**spec: Any) -> Pod:
    return decode.from_builtins({"metadata": {"name": "p"}, "spec": spec}, Pod)


def container(cpu: str | int = 0, *, sidecar: bool = False, limit: str | int | None = None) -> dict[str, Any]:
    made: dict[str, Any] = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    if limit is not None:
        made["resources"]["limits"] = {"cpu": limit}
    return made | ({"restartPolicy": "Always"} if sidecar else {})


def cpu_milli(of: Pod) -> int:
    return pod_resources.requests(of).get("cpu", quantity.ZERO).milli


def test_an_init_step_needs_its_own_and_the_sidecars_before_it() -> None:
    init = [container(1, sidecar=True), container(4), container(1, sidecar=True)]
    assert cpu_milli(pod(containers=[container(1)], initContainers=init)) == 5000
    assert cpu_milli(pod(containers=[container(4)], initContainers=init)) == 6000


def test_pod_level_requests_replace_and_overhead_adds() -> None:
    whole = pod(
        containers=[container(1)], resources={"requests": {"cpu": 3, "x.io/y": 1}}, overhead={"cpu": "250m"}
    )
    assert resource_list.to_wire(pod_resources.requests(whole)) == {"cpu": "3250m"}


def test_the_plain_pod_gives_its_own_list_and_others_the_sum() -> None:
    plain = pod(containers=[container("500m")])
    assert pod_resources.wire_requests(plain) is plain.spec.containers[0].resources.requests
    assert pod_resources.wire_requests(pod(containers=[container(1), container(1)])) == {"cpu": "2"}


cpus = st.integers(0, 64)
steps = st.lists(st.builds(container, cpus, sidecar=st.booleans()), max_size=5)


@given(st.lists(st.builds(container, cpus), min_size=1, max_size=4), steps)
def test_a_pod_never_needs_less_than_what_runs_together(
    containers: list[dict[str, Any]], init: list[dict[str, Any]]
) -> None:
    def total(of: list[dict[str, Any]]) -> int:
        return sum(each["resources"]["requests"]["cpu"] for each in of)

    sidecars = [each for each in init if "restartPolicy" in each]
    needed = cpu_milli(pod(containers=containers, initContainers=init))
    assert needed >= 1000 * (total(containers) + total(sidecars))
    assert needed >= 1000 * max((total([each]) for each in init), default=0)
    assert needed <= 1000 * (total(containers) + total(init))


def test_a_cpu_limit_needs_a_limit_in_every_container() -> None:
    assert pod_resources.cpu_limit_milli(pod(containers=[container(limit=1), container(limit=2)])) == 3000
    assert pod_resources.cpu_limit_milli(pod(containers=[container(limit=1), container()])) == -1
    assert pod_resources.cpu_limit_milli(pod()) == -1


def test_kubernetes_qos_counts_only_positive_cpu_and_memory() -> None:
    full = {"cpu": 1, "memory": "1Gi"}
    equal = {"name": "c", "resources": {"requests": full, "limits": full}}
    extended = {"name": "c", "resources": {"requests": {"x.io/y": 1, "cpu": 0}}}
    assert qos.computed_kube(pod(containers=[equal])) is KubeQoS.GUARANTEED
    assert qos.computed_kube(pod(containers=[equal, extended])) is KubeQoS.BURSTABLE
    assert qos.computed_kube(pod(containers=[extended])) is KubeQoS.BEST_EFFORT
    assert qos.default(pod(containers=[equal])) is QoSClass.LSR
    whole = pod(containers=[extended], resources={"requests": full, "limits": full})
    assert qos.computed_kube(whole) is KubeQoS.GUARANTEED


def test_the_recorded_class_wins_over_the_computed_one() -> None:
    recorded = msgspec.convert({"status": {"qosClass": "Guaranteed"}}, Pod)
    assert qos.kube(recorded) is KubeQoS.GUARANTEED
    assert qos.raw(recorded) is QoSClass.NONE
