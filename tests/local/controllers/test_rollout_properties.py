"""Whatever happens to pods, a rollout stays within its bounds, and ends when the trouble ends."""

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api.apps import (
    Deployment,
    DeploymentSpec,
    ReplicaCounts,
    ReplicaSet,
    ReplicaSetSpec,
    RollingUpdate,
    UpdateStrategy,
)
from koordinator.api.core import Pod
from koordinator.api.meta import ObjectMeta
from koordinator.local.controllers import pod_health, rollout
from tests.local.controllers.fake_kubelet import Fate
from tests.local.controllers.workload_world import controllers, edit, fetch, make, pods, template
from tests.local.controllers.world import World, run

SETTLE_S = 1.0  # controllers may not know yet what happened this recently


class Watchman:
    """Sees every delete that controllers ask for, and every moment."""

    def __init__(self, world: World, replicas: int, bounds: rollout.RolloutBounds) -> None:
        self.trouble_s = -SETTLE_S
        self._world = world
        self._maximum, self._minimum = replicas + bounds.surge, replicas - bounds.unavailable
        self._delete = world.cluster.delete
        world.cluster.delete = self._checked_delete  # type: ignore[method-assign]

    async def _checked_delete(self, view: Any, name: str, namespace: str = "", **more: Any) -> None:
        if view is Pod and "grace_period_s" not in more and not self._is_excused():
            pod = await self._world.cluster.get(Pod, name, namespace)
            if pod_health.is_ready(pod) and pod_health.is_active(pod):
                left = await self._available() - 1
                assert left >= self._minimum, (name, left, self._minimum)
        await self._delete(view, name, namespace, **more)

    async def look(self, *, is_calm: bool) -> None:
        """Check what must hold now; availability only while nothing was done to the pods."""
        active = [pod for pod in await pods(self._world) if pod_health.is_active(pod)]
        assert len(active) <= self._maximum, (len(active), self._maximum)
        if is_calm:
            assert await self._available() >= self._minimum

    async def _available(self) -> int:
        found = await pods(self._world)
        return sum(pod_health.is_active(pod) and pod_health.is_ready(pod) for pod in found)

    def _is_excused(self) -> bool:
        return asyncio.get_running_loop().time() - self.trouble_s < SETTLE_S


async def make_trouble(world: World, rng: random.Random) -> None:
    """One pod vanishes, fails, or is no longer ready."""
    active = [pod for pod in await pods(world) if pod_health.is_active(pod)]
    if not active:
        return
    pod = rng.choice(active)
    match rng.randrange(3):
        case 0:
            await world.cluster.delete(Pod, pod.metadata.name, "default", grace_period_s=0)
        case 1:
            await world.kubelet.end(pod, exit_code=1)  # type: ignore[attr-defined]
        case 2:
            await world.kubelet.set_ready(pod, ready=False)  # type: ignore[attr-defined]
            loop = asyncio.get_running_loop()
            queue = world.kubelet._queue  # type: ignore[attr-defined]
            loop.call_later(7, queue.put_nowait, lambda: world.kubelet.set_ready(pod))  # type: ignore[attr-defined]


@pytest.mark.parametrize("has_trouble", [False, True], ids=["calm", "with failing pods"])
@pytest.mark.parametrize("seed", range(12))
def test_a_rollout_keeps_its_bounds_at_every_step_and_ends(seed: int, has_trouble: bool) -> None:
    rng = random.Random(seed)
    replicas = rng.randint(1, 12)
    surge = rng.choice([0, 1, 3, "25%", "100%"])
    unavailable = rng.choice([0, 1, 2, "25%", "50%"])
    bounds = rollout.bounds(surge, unavailable, replicas, "", up=False)

    async def scenario(world: World) -> None:
        strategy = {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}
        await make(world, Deployment, replicas=replicas, strategy=strategy)
        await asyncio.sleep(10)
        watchman = Watchman(world, replicas, bounds)

        for step in range(400):
            if step % 50 == 0 and step < 200:
                await edit(world, Deployment, template=template(f"image{rng.randint(0, 3)}"))
            if has_trouble and step < 200 and rng.random() < 0.15:
                watchman.trouble_s = asyncio.get_running_loop().time()
                await make_trouble(world, rng)
            await asyncio.sleep(0.25)
            await watchman.look(is_calm=not has_trouble)

        await asyncio.sleep(60)
        status = (await fetch(world, Deployment)).status
        assert (status.updated_replicas, status.available_replicas, status.replicas) == (replicas,) * 3
        assert {c.reason for c in status.conditions} == {"MinimumReplicasAvailable", "NewReplicaSetAvailable"}

    run(
        controllers(lambda _: Fate(ready_s=rng.choice([0.3, 1.0, 4.0]), stop_s=rng.choice([0.1, 3.0]))),
        scenario,
    )


def deployment(replicas: int, surge: int, unavailable: int) -> Deployment:
    rolling = RollingUpdate(max_surge=surge, max_unavailable=unavailable)
    strategy = UpdateStrategy(type="RollingUpdate", rolling_update=rolling)
    return Deployment(spec=DeploymentSpec(replicas=replicas, strategy=strategy))


def replica_set(name: str, size: int, available: int, **annotations: str) -> ReplicaSet:
    meta = ObjectMeta(
        name=name, uid=name, creation_timestamp=f"2023-01-0{len(name)}T00:00:00Z", annotations=annotations
    )
    return ReplicaSet(
        metadata=meta,
        spec=ReplicaSetSpec(replicas=size),
        status=ReplicaCounts(replicas=size, available_replicas=available),
    )


sizes = st.tuples(st.integers(0, 12), st.integers(0, 12))


@given(st.integers(0, 12), st.integers(0, 4), st.integers(0, 4), sizes, st.lists(sizes, max_size=3))
def test_no_plan_exceeds_the_surge_or_takes_pods_that_must_stay(
    replicas: int, surge: int, unavailable: int, new: tuple[int, int], old: list[tuple[int, int]]
) -> None:
    wanted = deployment(replicas, surge, unavailable)
    bounds = rollout.bounds_of(wanted)
    newest = replica_set("new", *new)
    olds = [replica_set("a" * number, *size) for number, size in enumerate(old, 1)]

    grown = rollout.plan_new(wanted, newest, olds)
    for step in grown:
        total = step.replicas + rollout.wanted(olds)
        assert total <= replicas + bounds.surge or step.replicas < newest.spec.replicas

    shrunk = rollout.plan_old(wanted, newest, olds)
    left = {step.replica_set.metadata.uid: step.replicas for step in shrunk}
    assert all(
        0 <= size < one.spec.replicas for one in olds if (size := left.get(one.metadata.uid)) is not None
    )
    # A set gives up what is not available before it gives up what is.
    has = {one.metadata.uid: min(one.status.available_replicas, one.spec.replicas) for one in (newest, *olds)}
    after = has[newest.metadata.uid] + sum(
        min(has[one.metadata.uid], left.get(one.metadata.uid, one.spec.replicas)) for one in olds
    )
    before = sum(has.values())
    assert after >= min(before, replicas - bounds.unavailable)


@given(
    st.integers(1, 30),
    st.integers(0, 5),
    st.lists(st.integers(1, 12), min_size=2, max_size=4),
)
def test_scaling_in_proportion_adds_up_exactly(replicas: int, surge: int, parts: list[int]) -> None:
    before = max(sum(parts) - surge, 1)  # as many as the rollout's bounds allow
    wanted = deployment(replicas, surge, 1)
    limits = {rollout.DESIRED: str(before), rollout.MAX_REPLICAS: str(before + surge)}
    olds = [replica_set("a" * number, size, 0, **limits) for number, size in enumerate(parts, 1)]

    plan = rollout.plan_scaling(wanted, None, olds)

    total = sum(step.replicas for step in plan)
    assert all(step.replicas >= 0 for step in plan)
    assert total == replicas + rollout.bounds_of(wanted).surge


@pytest.mark.parametrize(
    ("value", "total", "up", "expected"),
    [
        pytest.param("25%", 10, True, 3, id="a surge rounds up"),
        pytest.param("25%", 10, False, 2, id="what may be missing rounds down"),
        pytest.param("0%", 10, True, 0, id="nothing of it is nothing"),
        pytest.param(7, 10, True, 7, id="a count is taken as it is"),
    ],
)
def test_bounds_of_a_percentage(value: int | str, total: int, up: bool, expected: int) -> None:
    assert rollout.resolved(value, total, "", up=up) == expected


def test_bounds_that_both_come_out_as_nothing_let_one_pod_be_missing() -> None:
    assert rollout.bounds("0%", "9%", 10, "", up=False) == rollout.RolloutBounds(0, 1)
