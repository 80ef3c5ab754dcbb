"""Informers over `MemoryCluster` and a fake backend, on virtual time."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koordinator.cluster import errors
from koordinator.cluster.informer import Informer, InformerFactory
from koordinator.cluster.memory import MemoryCluster
from koordinator.cluster.supervise import strictly
from tests.cluster import virtual_loop
from tests.cluster.fake_backend import FakeBackend, PodView, pod


@contextlib.asynccontextmanager
async def running(backend: FakeBackend, **options: object) -> AsyncIterator[Informer[PodView]]:
    informer = Informer(MemoryCluster(backend), PodView, rng=random.Random(1), **options)  # type: ignore[arg-type]
    task = asyncio.create_task(informer.run())
    await informer.synced.wait()
    try:
        yield informer
    finally:
        task.cancel()
        await asyncio.wait([task])


async def settle() -> None:
    """Long enough for every backoff: up to four failures in a row, each followed by at most a minute."""
    await asyncio.sleep(600)


def contents(informer: Informer[PodView]) -> dict[tuple[str, str], str]:
    return {key: obj.metadata.resource_version for key, obj in informer.objects.items()}


def truth(backend: FakeBackend) -> dict[tuple[str, str], str]:
    return {key: record.obj["metadata"]["resourceVersion"] for key, record in backend.records.items()}


class Journal:
    """What handlers were told, and a copy of the world built from nothing else."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.world: dict[str, PodView] = {}

    def on_add(self, obj: PodView) -> None:
        assert obj.key not in self.world
        self.world[obj.key] = obj
        self.lines.append(f"add {obj.metadata.name}")

    def on_update(self, old: PodView, new: PodView) -> None:
        assert self.world[new.key] is old
        assert old.metadata.uid == new.metadata.uid
        self.world[new.key] = new
        self.lines.append(f"update {new.metadata.name}")

    def on_delete(self, obj: PodView) -> None:
        del self.world[obj.key]
        self.lines.append(f"delete {obj.metadata.name}")

    def attach(self, informer: Informer[PodView]) -> "Journal":
        informer.add_handler(self.on_add, self.on_update, self.on_delete)
        return self


def test_cache_follows_additions_changes_and_deletions_in_order() -> None:
    async def scenario() -> None:
        backend = FakeBackend()
        backend.put(pod("a"))
        async with running(backend) as informer:
            journal = Journal().attach(informer)

            backend.put(pod("b"))
            backend.put(pod("a", node="n1"))
            backend.remove("b")
            await settle()

            assert journal.lines == ["add a", "add b", "update a", "delete b"]
            assert contents(informer) == truth(backend)
            assert informer.get("a", "shop").spec.node_name == "n1"
            assert informer.list_count == 1

    with strictly():
        virtual_loop.run(scenario())


def test_a_dropped_watch_resumes_where_it_ended_without_a_second_list() -> None:
    async def scenario() -> None:
        backend = FakeBackend()
        async with running(backend) as informer:
            backend.put(pod("a"))
            await settle()
            backend.drop_watches()
            backend.put(pod("b"))
            await settle()

            assert contents(informer) == truth(backend)
            assert informer.list_count == 1
            assert backend.watched_after == [100, 101]

    virtual_loop.run(scenario())


def test_versions_that_expire_as_fast_as_we_list_slow_us_down() -> None:
    async def scenario() -> None:
        backend = FakeBackend()
        backend.oldest = 1_000_000
        async with running(backend):
            await asyncio.sleep(600)
            assert backend.calls.count("list") < 25

    virtual_loop.run(scenario())


def test_an_expired_version_leads_to_a_list_that_tells_only_the_difference() -> None:
    async def scenario() -> None:
        backend = FakeBackend()
        for name in "abc":
            backend.put(pod(name))
        async with running(backend) as informer:
            journal = Journal().attach(informer)
            journal.lines.clear()

            backend.drop_watches()
            backend.remove("a")
            backend.put(pod("b", node="n1"))
            backend.put(pod("d"))
            backend.forget_history()
            await settle()

            assert journal.lines == ["delete a", "update b", "add d"]
            assert informer.list_count == 2

    virtual_loop.run(scenario())


def test_an_object_recreated_unseen_is_a_deletion_and_an_addition() -> None:
    async def scenario() -> None:
        backend = FakeBackend()
        backend.put(pod("a"))
        async with running(backend) as informer:
            journal = Journal().attach(informer)
            journal.lines.clear()

            backend.drop_watches()
            backend.remove("a")
            backend.put(pod("a"))
            backend.forget_history()
            await settle()

            assert journal.lines == ["delete a", "add a"]

    virtual_loop.run(scenario())


def test_a_failing_server_is_asked_again_with_growing_pauses() -> None:
    async def scenario() -> None:
        backend = FakeBackend()
        backend.failures = [errors.ServiceUnavailable("down")] * 6
        informer = Informer(MemoryCluster(backend), PodView, rng=random.Random(1))
        task = asyncio.create_task(informer.run())

        await informer.synced.wait()

        # 0.8 + 1.6 + 3.2 + 6.4 + 12.8 + 25.6 s, each up to doubled by jitter.
        assert 50.4 <= asyncio.get_running_loop().time() <= 100.8
        assert informer.guard.failure_count == 6
        task.cancel()

    virtual_loop.run(scenario())


def test_retry_after_of_the_server_is_obeyed() -> None:
    async def scenario() -> None:
        backend = FakeBackend()
        details = errors.StatusDetails(retry_after_seconds=77)
        backend.failures = [errors.TooManyRequests("slow down", details=details)]
        async with running(backend):
            assert asyncio.get_running_loop().time() == 77

    virtual_loop.run(scenario())


def test_watches_that_keep_failing_lead_to_a_list_as_after_a_restored_server() -> None:
    async def scenario() -> None:
        backend = FakeBackend()
        async with running(backend) as informer:
            backend.failures = [errors.Timeout("Too large resource version")] * 3
            backend.drop_watches()
            backend.put(pod("a"))
            await settle()

            assert informer.list_count == 2
            assert contents(informer) == truth(backend)

    virtual_loop.run(scenario())


def test_watches_in_a_row_that_say_nothing_lead_to_a_list() -> None:
    async def scenario() -> None:
        backend = FakeBackend()
        async with running(backend) as informer:
            for lists in (1, 1, 2, 2, 2, 3):
                await asyncio.sleep(100)
                backend.drop_watches()
                await settle()
                assert informer.list_count == lists

            await asyncio.sleep(100)
            backend.put(pod("a"))
            await settle()
            for _ in range(2):
                backend.drop_watches()
                await asyncio.sleep(100)
            assert informer.list_count == 3  # the one that spoke does not count
            assert informer.guard.failure_count == 0

    virtual_loop.run(scenario())


def test_a_server_that_ends_every_watch_at_once_is_not_asked_without_pause() -> None:
    async def scenario() -> None:
        backend = FakeBackend()
        async with running(backend):
            for _ in range(600):
                backend.drop_watches()
                await asyncio.sleep(0.1)
            assert backend.calls.count("watch") < 15

    virtual_loop.run(scenario())


def test_a_raising_handler_is_counted_and_the_next_handler_still_called() -> None:
    async def scenario() -> None:
        backend = FakeBackend()
        async with running(backend) as informer:
            informer.add_handler(on_add=lambda obj: 1 / 0)
            journal = Journal().attach(informer)
            backend.put(pod("a"))
            backend.put(pod("b"))
            await settle()

            assert journal.lines == ["add a", "add b"]
            assert informer.guard.failure_count == 2
            assert isinstance(informer.guard.last_error, ZeroDivisionError)

    virtual_loop.run(scenario())


def test_strictly_a_raising_handler_ends_the_informer() -> None:
    async def scenario() -> None:
        backend = FakeBackend()
        informer = Informer(MemoryCluster(backend), PodView, rng=random.Random(1))
        informer.add_handler(on_add=lambda obj: 1 / 0)
        backend.put(pod("a"))
        with strictly():
            await informer.run()

    with pytest.raises(ZeroDivisionError):
        virtual_loop.run(scenario())


def test_indexes_move_objects_with_their_values() -> None:
    async def scenario() -> None:
        backend = FakeBackend()
        backend.put(pod("a", node="n1"))
        async with running(backend) as informer:
            informer.add_index("node", lambda obj: [obj.spec.node_name])
            backend.put(pod("b", node="n1"))
            await settle()
            assert [obj.key for obj in informer.by_index("node", "n1")] == ["shop/a", "shop/b"]

            backend.put(pod("a", node="n2"))
            backend.remove("b")
            await settle()

            assert informer.by_index("node", "n1") == []
            assert [obj.key for obj in informer.by_index("node", "n2")] == ["shop/a"]

    virtual_loop.run(scenario())


def test_an_index_function_that_raises_leaves_the_object_findable_by_key() -> None:
    async def scenario() -> None:
        backend = FakeBackend()
        async with running(backend) as informer:
            informer.add_index("bad", lambda obj: [{}[obj.key]])  # type: ignore[misc]
            backend.put(pod("a"))
            await settle()

            assert informer.get("a", "shop") is not None
            assert informer.guard.failure_count == 1

    virtual_loop.run(scenario())


def test_a_handler_added_late_is_told_of_everything_known() -> None:
    async def scenario() -> None:
        backend = FakeBackend()
        backend.put(pod("a"))
        async with running(backend) as informer:
            assert Journal().attach(informer).lines == ["add a"]

    virtual_loop.run(scenario())


def test_transform_is_applied_before_caching() -> None:
    def without_labels(obj: PodView) -> PodView:
        return msgspec.structs.replace(obj, metadata=msgspec.structs.replace(obj.metadata, labels={}))

    async def scenario() -> None:
        backend = FakeBackend()
        backend.put(pod("a", labels={"app": "web"}))
        async with running(backend, transform=without_labels) as informer:
            assert informer.get("a", "shop").metadata.labels == {}
            backend.put(pod("b", labels={"app": "web"}))
            await settle()
            assert informer.get("b", "shop").metadata.labels == {}

    virtual_loop.run(scenario())


def test_a_transform_that_raises_costs_the_object_and_is_counted() -> None:
    def fails_for_a(obj: PodView) -> PodView:
        if obj.metadata.name == "a":
            raise ValueError("odd object")
        return obj

    async def scenario() -> None:
        backend = FakeBackend()
        backend.put(pod("a"))
        backend.put(pod("b"))
        async with running(backend, transform=fails_for_a) as informer:
            assert [name for _, name in informer.objects] == ["b"]
            assert informer.guard.failure_count == 1

    virtual_loop.run(scenario())


def test_a_resync_hands_out_every_object_as_changed_to_what_it_is() -> None:
    async def scenario() -> None:
        backend = FakeBackend()
        for name in ("a", "b"):
            backend.put(pod(name))
        async with running(backend) as informer:
            journal = Journal().attach(informer)
            seen: list[bool] = []
            informer.add_handler(on_update=lambda old, new: seen.append(old is new))
            before = len(journal.lines)

            await informer.resync()

            assert len(journal.lines) == before + 2 and seen == [True, True]

    virtual_loop.run(scenario())


def test_an_object_that_does_not_fit_the_view_keeps_its_last_readable_state(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        backend = FakeBackend()
        backend.put(pod("a", node="n1"))
        async with running(backend) as informer:
            backend.put({"metadata": {"name": "a", "namespace": "shop"}, "spec": {"priority": "high"}})
            backend.put(pod("b"))
            await settle()
            assert informer.get("a", "shop").spec.node_name == "n1"
            assert informer.get("b", "shop") is not None

            backend.drop_watches()
            backend.put(pod("c"))
            backend.forget_history()
            await settle()
            assert informer.list_count == 2
            assert informer.get("a", "shop").spec.node_name == "n1"

            backend.remove("a")
            await settle()
            assert informer.get("a", "shop") is None

    virtual_loop.run(scenario())
    assert "Pod shop/a: $.spec.priority: Expected `int`, got `str`" in caplog.text


def test_factory_shares_informers_and_runs_those_asked_for_late() -> None:
    async def scenario() -> None:
        backend = FakeBackend()
        backend.put(pod("a"))
        factory = InformerFactory(MemoryCluster(backend), random.Random(1))
        everywhere = factory.informer(PodView)
        async with asyncio.TaskGroup() as group:
            factory.start(group)
            elsewhere = factory.informer(PodView, "other")
            await factory.wait_synced()

            assert factory.informer(PodView) is everywhere
            assert len(everywhere) == 1
            assert len(elsewhere) == 0
            await factory.stop()
        assert not backend.subscriptions

    virtual_loop.run(scenario())


STEPS = st.lists(
    st.sampled_from(["put", "put", "put", "remove", "recreate", "drop", "forget", "fail", "wait"]),
    max_size=40,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS, seed=st.integers(0, 2**32))
def test_whatever_happens_the_cache_ends_equal_to_the_server(steps: list[str], seed: int) -> None:
    rng = random.Random(seed)

    async def scenario() -> None:
        backend = FakeBackend()
        async with running(backend) as informer:
            informer.add_index("node", lambda obj: [obj.spec.node_name])
            journal = Journal().attach(informer)
            for step in steps:
                name, node = rng.choice("abcd"), rng.choice(["", "n1", "n2"])
                exists = ("shop", name) in backend.records
                match step:
                    case "put":
                        backend.put(pod(name, node=node))
                    case "remove" if exists:
                        backend.remove(name)
                    case "recreate" if exists:
                        backend.remove(name)
                        backend.put(pod(name, node=node))
                    case "drop":
                        backend.drop_watches()
                    case "forget":
                        backend.drop_watches()
                        backend.forget_history()
                    case "fail":
                        backend.drop_watches()
                        backend.failures = [errors.ServiceUnavailable("down")] * rng.randint(1, 4)
                    case "wait":
                        await asyncio.sleep(rng.random() * 5)
            await settle()

            assert contents(informer) == truth(backend)
            assert journal.world == {obj.key: obj for obj in informer.list()}
            for node in ("", "n1", "n2"):
                found = {obj.key for obj in informer.by_index("node", node)}
                assert found == {obj.key for obj in informer.list() if obj.spec.node_name == node}

    with strictly():
        virtual_loop.run(scenario())
