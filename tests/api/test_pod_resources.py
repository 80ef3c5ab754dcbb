"""Whole-pod amounts."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import (
    decode,
    normalization,
    pod_resize,
    pod_resources,
    qos,
    quantity,
    resource_list,
)
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


def resized(
    wanted: dict[str, Any],
    applied: dict[str, Any] | None = None,
    promised: dict[str, Any] | None = None,
    *,
    pending: str = "",
    kind: str = "container",
    limits: tuple[dict[str, Any], dict[str, Any]] = ({}, {}),
) -> Pod:
    """A pod of one container (or sidecar, or init step beside an idle container) as it wants and has amounts."""
    one: dict[str, Any] = {"name": "c", "resources": {"requests": wanted, "limits": limits[0]}}
    told: dict[str, Any] = {"name": "c", "allocatedResources": promised or {}}
    if applied is not None:
        told["resources"] = {"requests": applied, "limits": limits[1]}
    if kind == "sidecar":
        one["restartPolicy"] = "Always"
    is_init = kind != "container"
    conditions = [{"type": "PodResizePending", "status": "True", "reason": pending}] if pending else []
    return decode.from_builtins(
        {
            "metadata": {"name": "p"},
            "spec": {
                "containers": [{"name": "idle"}] if is_init else [one],
                "initContainers": [one] if is_init else [],
            },
            "status": {
                "conditions": conditions,
                "initContainerStatuses" if is_init else "containerStatuses": [told],
            },
        },
        Pod,
    )


@pytest.mark.parametrize("kind", ["container", "sidecar"])
def test_a_pod_that_is_resized_counts_for_the_most_of_what_it_wants_has_and_was_promised(kind: str) -> None:
    def milli(*args: Any, **more: Any) -> int:
        return cpu_milli(resized(*args, kind=kind, **more))

    assert milli({"cpu": 1}, {"cpu": 2}, {"cpu": 3}) == 3000
    assert milli({"cpu": 1}, {"cpu": 2}, {"cpu": "1500m"}) == 2000
    assert milli({"cpu": 4}, {"cpu": 2}, {"cpu": 3}, pending="Deferred") == 4000
    assert milli({"cpu": 4}, {"cpu": 2}, {"cpu": 3}, pending="Infeasible") == 3000
    assert milli({"cpu": 4}, {}, {}, pending="Infeasible") == 0
    assert milli({"cpu": 1}, None, {"cpu": 3}) == 1000, "what was promised counts beside what is applied only"
    assert milli({"memory": "1Gi"}, {"cpu": 2, "memory": "1Gi"}) == 2000


def test_an_init_step_is_not_resized() -> None:
    assert cpu_milli(resized({"cpu": 1}, {"cpu": 2}, {"cpu": 3}, kind="step")) == 1000


def test_limits_count_as_they_are_wanted_and_applied() -> None:
    def limit(wanted: int, applied: int, pending: str = "") -> Any:
        pod = resized({}, {}, pending=pending, limits=({"cpu": wanted}, {"cpu": applied}))
        return pod_resources.wire_limits(pod)["cpu"]

    assert (limit(1, 2), limit(3, 2), limit(3, 2, "Infeasible")) == (2, 3, 2)


def test_the_whole_pod_is_resized_as_containers_are() -> None:
    body = {
        "metadata": {"name": "p"},
        "spec": {"containers": [container(1)], "resources": {"requests": {"cpu": 2}}},
        "status": {
            "resources": {"requests": {"cpu": 3, "memory": "1Gi"}},
            "allocatedResources": {"cpu": "2500m"},
        },
    }
    assert pod_resources.wire_requests(decode.from_builtins(body, Pod)) == {"cpu": "3"}


def test_a_pod_that_has_what_it_wants_gives_its_own_list() -> None:
    settled = resized({"cpu": "1"}, {"cpu": "1"}, {"cpu": "1"})
    assert pod_resources.wire_requests(settled) is settled.spec.containers[0].resources.requests


@given(*[st.dictionaries(st.sampled_from(["cpu", "memory"]), st.integers(0, 9)) for _ in range(3)])
def test_counting_twice_changes_nothing(wanted: Any, applied: Any, promised: Any) -> None:
    for pending in ("", "Deferred", "Infeasible"):
        one = resized(wanted, applied, promised, pending=pending)
        again = msgspec.structs.replace(one, spec=pod_resize.counted_spec(one))
        assert pod_resource_amounts(again) == pod_resource_amounts(one)


def pod_resource_amounts(of: Pod) -> Any:
    return pod_resources.requests(of), pod_resources.wire_limits(of)


def test_what_the_kubelet_has_not_granted_is_no_amount_for_groups() -> None:
    def granted(**more: Any) -> Any:
        pod = resized({"cpu": 4}, {"cpu": 1}, {"cpu": 2}, limits=({"cpu": 8}, {"cpu": 3}), **more)
        of = pod_resize.granted_spec(pod).containers[0].resources
        return of.requests["cpu"], of.limits["cpu"]

    assert granted() == (4, 8), "granted, perhaps not applied yet"
    assert granted(pending="Deferred") == granted(pending="Infeasible") == (2, 3)


def test_names_of_resources_are_current_in_what_is_told_of_containers_too() -> None:
    old, new = "koordinator.sh/batch-cpu", "kubernetes.io/batch-cpu"
    normal = normalization.normalize_pod(
        resized({old: 1000}, {old: 1000}, {old: 1000}), normalization.PodSteps()
    )
    assert pod_resources.wire_requests(normal) == {new: 1000}
