"""Leader election over a fake backend, on virtual time."""

import asyncio
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koordinator.clock import LoopClock
from koordinator.cluster import errors
from koordinator.cluster.backend import ObjectRecord
from koordinator.cluster.leader import ElectionConfig, LeaderElector, LeaseLost
from koordinator.cluster.memory import MemoryCluster
from tests.cluster import virtual_loop
from tests.cluster.fake_backend import FakeBackend

EPOCH_S = 1_700_000_000.0


class LeaseServer(FakeBackend):
    """Guards by resourceVersion; `cut_off` makes one user's calls fail."""

    def __init__(self) -> None:
        super().__init__(LoopClock(asyncio.get_running_loop(), EPOCH_S))
        self.down = False

    def _called(self, what: str) -> None:
        super()._called(what)
        if self.down:
            raise errors.ConnectionFailed("connection refused")

    def lease(self) -> dict[str, Any]:
        return self.records["koordinator-system", "koordinator-manager"].obj["spec"]

    async def patch(self, resource: Any, namespace: str, name: str, patch: Any, *rest: Any) -> ObjectRecord:
        current = self.get(resource, namespace, name).obj
        await asyncio.sleep(0)
        now = self.records[namespace, name].obj
        if patch["metadata"]["resourceVersion"] != now["metadata"]["resourceVersion"]:
            raise errors.Conflict("the object has been modified")
        return self.put(current | {"spec": current["spec"] | patch["spec"]})


class CutOffCluster(MemoryCluster):
    """A cluster that one candidate may lose sight of."""

    def __init__(self, backend: LeaseServer) -> None:
        super().__init__(backend)
        self.down = False

    async def get(self, *args: Any, **kwargs: Any) -> Any:
        if self.down:
            raise errors.ConnectionFailed("connection refused")
        return await super().get(*args, **kwargs)

    async def patch(self, *args: Any, **kwargs: Any) -> Any:
        if self.down:
            raise errors.ConnectionFailed("connection refused")
        return await super().patch(*args, **kwargs)


def config(identity: str) -> ElectionConfig:
    return ElectionConfig(name="koordinator-manager", namespace="koordinator-system", identity=identity)


class Candidate:
    def __init__(self, server: LeaseServer, identity: str) -> None:
        self.cluster = CutOffCluster(server)
        self.working_since_s: float | None = None
        self.election = LeaderElector(self.cluster, config(identity), rng=random.Random(identity))
        self.task = asyncio.create_task(self.election.run(self.work))

    async def work(self) -> None:
        self.working_since_s = asyncio.get_running_loop().time()
        try:
            await asyncio.Event().wait()
        finally:
            self.working_since_s = None

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


def test_the_lease_is_written_as_other_clients_read_it() -> None:
    async def scenario() -> None:
        server = LeaseServer()
        candidate = Candidate(server, "a")
        await asyncio.sleep(5)

        assert server.lease() == {
            "holderIdentity": "a",
            "leaseDurationSeconds": 15,
            "acquireTime": "2023-11-14T22:13:20.000000Z",
            "renewTime": "2023-11-14T22:13:24.000000Z",
            "leaseTransitions": 0,
        }
        await candidate.stop()

    virtual_loop.run(scenario())


def test_a_stopped_leader_hands_over_at_once() -> None:
    async def scenario() -> None:
        server = LeaseServer()
        first = Candidate(server, "a")
        await asyncio.sleep(1)
        second = Candidate(server, "b")
        await asyncio.sleep(30)
        assert first.election.is_leader
        assert not second.election.is_leader

        await first.stop()
        assert server.lease()["holderIdentity"] == ""
        await asyncio.sleep(5)

        assert second.election.is_leader
        assert server.lease()["leaseTransitions"] == 1
        await second.stop()

    virtual_loop.run(scenario())


def test_a_renewal_is_one_request_unless_somebody_else_wrote_to_the_lease() -> None:
    async def scenario() -> None:
        server = LeaseServer()
        slow: list[float] = []
        asked: list[str] = []

        class Counting(CutOffCluster):
            async def get(self, *args: Any, **kwargs: Any) -> Any:
                asked.append("get")
                return await super().get(*args, **kwargs)

        loop = asyncio.get_running_loop()
        election = LeaderElector(
            Counting(server),
            config("a"),
            rng=random.Random(1),
            on_slow_path=lambda: slow.append(loop.time()),
        )
        task = asyncio.create_task(election.run(asyncio.Event().wait))  # type: ignore[arg-type]
        await asyncio.sleep(10)
        asked.clear()
        await asyncio.sleep(20)
        assert (asked, slow) == ([], [])
        acquired = server.lease()["acquireTime"]

        record = server.records["koordinator-system", "koordinator-manager"]
        server.put({**record.obj, "metadata": {**record.obj["metadata"], "labels": {"seen": "yes"}}})
        await asyncio.sleep(5)

        assert (len(asked), len(slow)) == (1, 1)
        assert election.is_leader and server.lease()["acquireTime"] == acquired
        assert server.lease()["leaseTransitions"] == 0
        task.cancel()
        await asyncio.wait([task])

    virtual_loop.run(scenario())


def test_a_crashed_leader_is_replaced_after_the_lease_duration() -> None:
    async def scenario() -> None:
        server = LeaseServer()
        server.put(
            {
                "metadata": {"name": "koordinator-manager", "namespace": "koordinator-system"},
                # Its clock is a year ahead: only what we observe counts.
                "spec": {
                    "holderIdentity": "gone",
                    "leaseDurationSeconds": 15,
                    "renewTime": "2024-11-14T22:13:20.000000Z",
                    "leaseTransitions": 6,
                },
            }
        )
        candidate = Candidate(server, "a")

        await asyncio.sleep(14.9)
        assert not candidate.election.is_leader
        await asyncio.sleep(5)

        assert candidate.election.is_leader
        assert server.lease()["leaseTransitions"] == 7
        await candidate.stop()

    virtual_loop.run(scenario())


def test_a_leader_that_cannot_renew_stops_its_work_before_another_begins() -> None:
    async def scenario() -> None:
        server = LeaseServer()
        first = Candidate(server, "a")
        await asyncio.sleep(1)
        second = Candidate(server, "b")
        first.cluster.down = True

        with pytest.raises(LeaseLost, match="not renewed for 10 s"):
            await first.task

        assert first.working_since_s is None
        assert second.working_since_s is None
        await asyncio.sleep(20)
        assert second.working_since_s is not None
        await second.stop()

    virtual_loop.run(scenario())


def test_a_short_outage_costs_nothing() -> None:
    async def scenario() -> None:
        server = LeaseServer()
        candidate = Candidate(server, "a")
        await asyncio.sleep(5)
        server.down = True
        await asyncio.sleep(7)
        server.down = False
        await asyncio.sleep(20)

        assert candidate.working_since_s == 0
        await candidate.stop()

    virtual_loop.run(scenario())


def test_the_lease_is_held_until_slow_work_has_really_ended() -> None:
    async def scenario() -> None:
        server = LeaseServer()
        holders: list[str] = []

        async def slow_to_end() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(60)  # four lease durations
                holders.append(server.lease()["holderIdentity"])

        election = LeaderElector(MemoryCluster(server), config("a"), rng=random.Random(1))
        first = asyncio.create_task(election.run(slow_to_end))
        await asyncio.sleep(1)
        second = Candidate(server, "b")
        first.cancel()
        await asyncio.wait([first])

        assert holders == ["a"]
        await asyncio.sleep(5)
        assert second.election.is_leader
        await second.stop()

    virtual_loop.run(scenario())


def test_work_that_ends_gives_the_lease_up_and_its_error_is_seen() -> None:
    async def scenario() -> None:
        server = LeaseServer()

        async def work() -> None:
            raise KeyError("bug")

        election = LeaderElector(MemoryCluster(server), config("a"), rng=random.Random(1))
        with pytest.raises(KeyError):
            await election.run(work)
        assert server.lease()["holderIdentity"] == ""

    virtual_loop.run(scenario())


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        pytest.param({"lease_duration_s": 10}, "lease duration", id="lease not above deadline"),
        pytest.param({"retry_period_s": 9.0}, "retry period", id="deadline not above retries"),
        pytest.param({"identity": ""}, "identity", id="nobody"),
    ],
)
def test_settings_that_could_make_two_leaders_are_refused(fields: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        ElectionConfig(**({"name": "x", "namespace": "y", "identity": "z"} | fields))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32))
def test_there_are_never_two_leaders_and_soon_one_after_the_faults_stop(seed: int) -> None:
    rng = random.Random(seed)

    async def scenario() -> None:
        server = LeaseServer()
        candidates = {name: Candidate(server, name) for name in "abc"}
        for _ in range(60):
            candidate = candidates[rng.choice("abc")]
            match rng.choice(["cut", "heal", "stop", "wait", "wait"]):
                case "cut":
                    candidate.cluster.down = True
                case "heal":
                    candidate.cluster.down = False
                case "stop":
                    await candidate.stop()
            for name, old in list(candidates.items()):
                if old.task.done():
                    assert old.task.cancelled() or isinstance(old.task.exception(), LeaseLost)
                    candidates[name] = Candidate(server, name)
            await asyncio.sleep(rng.random() * 8)
            working = [name for name, c in candidates.items() if c.working_since_s is not None]
            assert len(working) <= 1, working

        for candidate in candidates.values():
            candidate.cluster.down = False
        await asyncio.sleep(60)
        alive = [c for c in candidates.values() if not c.task.done() or c.task.exception() is None]
        assert sum(c.working_since_s is not None for c in alive) == 1
        for candidate in alive:
            await candidate.stop()

    virtual_loop.run(scenario())


def test_one_renewal_that_hangs_costs_no_leadership() -> None:
    """A connection that is silent for ever (a proxy that died): the next request takes another."""

    async def scenario() -> None:
        server = LeaseServer()
        leader = Candidate(server, "a")
        await asyncio.sleep(1)
        since_s = leader.working_since_s
        renew, hung = leader.cluster.patch, 0

        async def hang_once(*args: Any, **kwargs: Any) -> Any:
            nonlocal hung
            if not hung:
                hung += 1
                await asyncio.Event().wait()
            return await renew(*args, **kwargs)

        leader.cluster.patch = hang_once  # type: ignore[method-assign]
        await asyncio.sleep(60)

        assert hung == 1
        assert leader.working_since_s == since_s is not None
        assert leader.election.may_act
        await leader.stop()

    virtual_loop.run(scenario())
