"""What groups get, in the figures that the kubelet would write."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api.qos import KubeQoS
from koordinator.local.processes import groups
from koordinator.local.processes.groups import GroupAmounts
from tests.local.processes.pods import container, pod

MIB = 2**20
FULL = {"cpu": "500m", "memory": "64Mi"}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param(container(), GroupAmounts(2), id="without requests the least shares, no limits"),
        pytest.param(container(requests={"cpu": "250m"}), GroupAmounts(256), id="a request is shares"),
        pytest.param(
            container(limits={"cpu": "2"}), GroupAmounts(2048, 200_000), id="a limit stands for a request"
        ),
        pytest.param(
            container(requests={"cpu": "0"}, limits={"cpu": "1"}), GroupAmounts(2, 100_000), id="zero is zero"
        ),
        pytest.param(container(limits={"cpu": "5m"}), GroupAmounts(5, 1_000), id="the kernel's least quota"),
        pytest.param(container(limits={"memory": "1Gi"}), GroupAmounts(2, 0, 2**30), id="memory"),
        pytest.param(
            container(requests={"cpu": "1000"}), GroupAmounts(262_144), id="the kernel's most shares"
        ),
    ],
)
def test_a_containers_group(spec: dict[str, object], expected: GroupAmounts) -> None:
    assert groups.of_container(pod(spec).spec.containers[0]) == expected


@pytest.mark.parametrize(
    ("containers", "init", "expected"),
    [
        pytest.param([container()], [], GroupAmounts(2), id="best effort"),
        pytest.param(
            [container(requests=FULL, limits=FULL)], [], GroupAmounts(512, 50_000, 64 * MIB), id="guaranteed"
        ),
        pytest.param(
            [container(requests=FULL, limits=FULL), container("b", requests={"cpu": "500m"})],
            [],
            GroupAmounts(1024),
            id="one container without limits leaves the pod without",
        ),
        pytest.param(
            [container(requests=FULL, limits=FULL)],
            [container("step", requests={"cpu": "2"}, limits={"cpu": "2", "memory": "256Mi"})],
            GroupAmounts(2048, 200_000, 256 * MIB),
            id="a larger step counts",
        ),
        pytest.param(
            [container(requests=FULL, limits=FULL)],
            [container("side", requests=FULL, limits=FULL, restartPolicy="Always")],
            GroupAmounts(1024, 100_000, 128 * MIB),
            id="a sidecar adds",
        ),
    ],
)
def test_a_pods_group(
    containers: list[dict[str, object]], init: list[dict[str, object]], expected: GroupAmounts
) -> None:
    assert groups.of_pod(pod(*containers, initContainers=init).view) == expected


def test_classes_share_by_what_their_pods_request() -> None:
    pods = [
        pod(container(requests={"cpu": "300m"}), name="a").view,
        pod(container(requests={"cpu": "700m"}), name="b").view,
        pod(container(requests=FULL, limits=FULL), name="guaranteed").view,
        pod(container(), name="batch").view,
    ]

    assert groups.of_class(KubeQoS.BURSTABLE, pods) == GroupAmounts(1024)
    assert groups.of_class(KubeQoS.BEST_EFFORT, pods) == GroupAmounts(2)
    assert groups.of_class(KubeQoS.BURSTABLE, []) == GroupAmounts(2)
    assert groups.of_all_pods(1500, 2**30) == GroupAmounts(1536, 0, 2**30)


@pytest.mark.parametrize(
    ("spec", "priority", "score"),
    [
        pytest.param(container(), 0, 1000, id="best effort goes first"),
        pytest.param(container(requests=FULL, limits=FULL), 0, -997, id="guaranteed goes last"),
        pytest.param(container(), 2_000_001_000, -997, id="so does what the node needs"),
        pytest.param(container(requests={"memory": "256Mi"}), 0, 750, id="the more requested the later"),
        pytest.param(container(requests={"cpu": "1"}), 0, 999, id="burstable goes after best effort"),
        pytest.param(container(requests={"memory": "2Gi"}), 0, 3, id="and before guaranteed"),
    ],
)
def test_the_order_in_which_the_kernel_kills(spec: dict[str, object], priority: int, score: int) -> None:
    found = pod(spec, priority=priority)

    assert groups.oom_score_adj(found.view, found.spec.containers[0], 2**30) == score


@given(st.lists(st.integers(0, 4_000), min_size=1, max_size=5))
def test_a_pod_has_the_shares_of_its_containers_together(requests_milli: list[int]) -> None:
    whole = groups.of_pod(
        pod(
            *(container(f"c{i}", requests={"cpu": f"{milli}m"}) for i, milli in enumerate(requests_milli))
        ).view
    )

    assert whole.shares == max(sum(requests_milli) * 1024 // 1000, 2)
