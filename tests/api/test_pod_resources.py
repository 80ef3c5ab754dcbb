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


def test_an_init_step_says_in_what_notation_its_need_is_written() -> None:
    of = pod(containers=[{"name": "c"}], initContainers=[container("1500m", sidecar=True), container("1e3")])
    assert pod_resources.wire_requests(of)["cpu"] == "1001500e-3"


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


AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory", "hugepages-2Mi", "x.io/y"]), st.integers(0, 9))
CONTAINERS = st.builds(
    lambda asked, limits, sidecar: {
        "name": "c",
        "resources": {"requests": asked, "limits": limits},
        **({"restartPolicy": "Always"} if sidecar else {}),
    },
    *(AMOUNTS, AMOUNTS, st.booleans()),
)
WHOLE = st.fixed_dictionaries({"requests": AMOUNTS, "limits": AMOUNTS})


def slow_amounts(spec: dict[str, Any], side: str) -> dict[str, int]:
    """Without overhead, resource by resource: each moment of the pod's life is looked at, the largest counts."""
    total = {}
    lists = [*spec["containers"], *spec["initContainers"]]
    for name in {name for each in lists for name in each["resources"][side]}:
        own = [each["resources"][side].get(name, 0) for each in spec["containers"]]
        moments, sidecars = [], 0
        for each in spec["initContainers"]:
            amount = each["resources"][side].get(name, 0)
            moments.append(sidecars + amount)
            sidecars += amount if "restartPolicy" in each else 0
        total[name] = max([sum(own) + sidecars, *moments])
    whole = (spec["resources"] or {}).get(side, {})
    return total | {name: amount for name, amount in whole.items() if name != "x.io/y"}


@given(
    st.fixed_dictionaries(
        {
            "containers": st.lists(CONTAINERS.filter(lambda c: "restartPolicy" not in c), max_size=2),
            "initContainers": st.lists(CONTAINERS, max_size=3),
            "resources": st.none() | WHOLE,
            "overhead": AMOUNTS,
        }
    )
)
def test_requests_and_limits_are_those_of_the_pods_most_demanding_moment(spec: dict[str, Any]) -> None:
    def amounts(of: Any) -> dict[str, int]:
        return {name: quantity.value(amount) for name, amount in of.items()}

    asked, limits, overhead = slow_amounts(spec, "requests"), slow_amounts(spec, "limits"), spec["overhead"]
    with_overhead = {
        name: asked.get(name, 0) + overhead.get(name, 0) for name in asked.keys() | overhead.keys()
    }
    whole = pod(**spec)
    bare = pod_resources.requests(whole, with_overhead=False)
    assert amounts(resource_list.to_wire(bare)) == asked
    assert pod_resources.requests(whole) == resource_list.of(pod_resources.wire_requests(whole))
    assert amounts(pod_resources.wire_requests(whole)) == with_overhead
    assert amounts(pod_resources.wire_limits(whole)) == {
        name: amount + (overhead.get(name, 0) if amount else 0) for name, amount in limits.items()
    }


def test_a_cpu_limit_needs_a_limit_in_every_container() -> None:
    assert pod_resources.cpu_limit_milli(pod(containers=[container(limit=1), container(limit=2)])) == 3000
    assert pod_resources.cpu_limit_milli(pod(containers=[container(limit=1), container()])) == -1
    assert pod_resources.cpu_limit_milli(pod()) == -1


@pytest.mark.parametrize(
    ("init", "whole", "milli"),
    [
        pytest.param([container(limit=4)], None, 4000, id="a step needs more than what runs"),
        pytest.param([container(limit=2)], None, 3000, id="a step needs less"),
        pytest.param([container(limit=1, sidecar=True)], None, 4000, id="a sidecar comes on top"),
        pytest.param(
            [container(limit=1, sidecar=True), container(limit=4)], None, 4000, id="a sidecar, then a step"
        ),
        pytest.param([container(limit=4), container(limit=1, sidecar=True)], None, 5000, id="after a step"),
        pytest.param([container()], None, -1, id="a step without limit"),
        pytest.param(
            [container(limit=1, sidecar=True), container()], {"memory": 1}, -1, id="of memory alone"
        ),
        pytest.param([container()], {"cpu": "1m"}, 1, id="the whole pod's"),
        pytest.param([], {"cpu": 0}, -1, id="the whole pod's zero"),
    ],
)
def test_a_cpu_limit_counts_init_containers_in_their_order(init: Any, whole: Any, milli: int) -> None:
    more = {"resources": {"limits": whole}} if whole is not None else {}
    limited = pod(containers=[container(limit=1), container(limit=2)], initContainers=init, **more)
    assert pod_resources.cpu_limit_milli(limited) == milli


def test_batch_amounts_are_those_of_containers_and_sidecars_and_a_missing_limit_is_none_at_all() -> None:
    def batch(*amounts: int | None, cpu: str = "kubernetes.io/batch-cpu") -> Any:
        lists = [{} if amount is None else {cpu: amount} for amount in amounts]
        made = [{"name": "c", "resources": {"requests": each, "limits": each}} for each in lists]
        first, sidecar, step = made
        return pod_resources.batch(
            pod(containers=[first], initContainers=[{**sidecar, "restartPolicy": "Always"}, step])
        )

    assert batch(1000, 500, 9000) == pod_resources.BatchAmounts(1500, 0, 1500, -1)
    assert batch(1000, None, None) == pod_resources.BatchAmounts(1000, 0, -1, -1)
    assert batch(1, 0, None) == pod_resources.BatchAmounts(1, 0, -1, -1)
    assert batch(1, 2, None, cpu="kubernetes.io/batch-memory") == pod_resources.BatchAmounts(0, 3, -1, 3)
    assert pod_resources.batch(pod()) == pod_resources.BatchAmounts(0, 0, -1, -1)


@pytest.mark.parametrize(
    "change",
    [
        {"containers": [container(2)]},
        {"initContainers": [container(1)]},
        {"overhead": {"cpu": 1}},
        {"resources": {"requests": {"cpu": 1}}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_two_states_have_the_same_amounts_unless_one_part_differs(change: dict[str, Any]) -> None:
    spec = {"containers": [container(1)], "nodeName": "a"}
    assert pod_resources.have_same_amounts(pod(**spec), pod(**{**spec, "nodeName": "b"}))
    assert not pod_resources.have_same_amounts(pod(**spec), pod(**{**spec, **change}))


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
    for nothing in ({}, {"requests": {}}):
        assert qos.computed_kube(pod(containers=[equal], resources=nothing)) is KubeQoS.BEST_EFFORT


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
    reported: dict[str, Any] = {"name": "c", "allocatedResources": promised or {}}
    if applied is not None:
        reported["resources"] = {"requests": applied, "limits": limits[1]}
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
                "initContainerStatuses" if is_init else "containerStatuses": [reported],
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


def test_limits_of_the_whole_pod_stay_when_none_is_applied() -> None:
    body = {
        "metadata": {"name": "p"},
        "spec": {"containers": [container(1)], "resources": {"limits": {"cpu": 2}}},
        "status": {
            "resources": {"requests": {"cpu": 1}},
            "conditions": [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}],
        },
    }
    assert pod_resources.wire_limits(decode.from_builtins(body, Pod)) == {"cpu": "2"}


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
