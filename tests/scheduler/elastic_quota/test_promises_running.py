"""What quotas promise, kept by a whole running scheduler: a tree of three levels with 200 leaves, on virtual time."""

import json
import random
from typing import Any

import pytest

from koordinator.api import decode, pod_resources
from koordinator.api.core import Pod
from koordinator.api.resource_vector import ResourceRegistry
from koordinator.api.sigs import ElasticQuota as ElasticQuotaObject
from koordinator.scheduler.plugins.elastic_quota.checks import PodQuota
from koordinator.scheduler.plugins.elastic_quota.plugin import ElasticQuota
from koordinator.scheduler.plugins.elastic_quota.quota import (
    DEFAULT,
    ROOT,
    SYSTEM,
    QuotaPodRequest,
    QuotaSpec,
    above,
    nanos_of,
)
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.elastic_quota.slow_quotas import SlowQuotas, Standing, broken_promises, total_of
from tests.scheduler.elastic_quota.test_lending import plugin_of
from tests.scheduler.elastic_quota.test_plugin import PREFIX, fixed, member, quota
from tests.scheduler.world import World, play

Json = dict[str, Any]
SHAPE = (8, 5, 5)
STEPS = 14


class Town:
    """Demand on a running scheduler, by the API alone."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.count = 0
        self.leaves: dict[str, str] = {}
        """Leaf → its parent."""
        self.teams: list[str] = []
        self.node_comes()
        self.node_comes()
        parents = [""]
        for depth, count in enumerate(SHAPE):
            children = []
            for parent in parents:
                for number in range(count):
                    name = f"{parent or 'q'}-{number}"
                    self.put_quota(name, parent, is_parent=depth + 1 < len(SHAPE))
                    children.append(name)
                    if depth + 1 == len(SHAPE):
                        self.leaves[name] = parent
            parents = children
            self.teams = parents if depth + 2 == len(SHAPE) else self.teams

    def put_quota(self, name: str, parent: str, *, is_parent: bool = False, least: int = 0) -> None:
        low = max(least, self.rng.randrange(4)) * (6 if is_parent else 1)
        high = low + self.rng.randrange(1, 12) * (6 if is_parent else 1)
        own = {"is_parent": str(is_parent).lower()}
        if self.rng.random() < 0.2:
            own["allow_lent_resource"] = "false"
        body = quota(name, parent=parent, low=low, high=high, **own)
        body["metadata"]["annotations"] = {
            f"{PREFIX}/shared-weight": json.dumps({"cpu": str(self.rng.randrange(1, 9))})
        }
        self.world.api.put("ElasticQuota", body)

    def step(self) -> None:
        for each in self.rng.choices(
            (
                self.pods_come,
                self.pods_end,
                self.pod_moves,
                self.leaf_moves,
                self.leaf_goes,
                self.leaf_comes,
                self.node_comes,
                self.node_is_resized,
            ),
            (6, 4, 2, 3, 1, 1, 1, 2),
            k=3,
        ):
            each()

    def pods_come(self) -> None:
        for leaf in self.rng.sample(sorted(self.leaves), 12):
            for _ in range(self.rng.randrange(1, 4)):
                self.count += 1
                body = member(f"pod-{self.count}", leaf, cpu=str(self.rng.randrange(1, 4)))
                if self.rng.random() < 0.3:
                    body = fixed(body)
                self.world.api.put("Pod", body)

    def names(self, share: float) -> list[str]:
        names = sorted(name for _, name in self.world.api.objects.get("Pod", {}))
        return self.rng.sample(names, int(len(names) * share))

    def pods_end(self) -> None:
        for name in self.names(0.2):
            self.world.api.remove("Pod", name, "default")

    def pod_moves(self) -> None:
        """To another quota; nobody's minimum is filled that way."""
        for name in self.names(0.05):
            body = self.world.api.objects["Pod"]["default", name]
            if f"{PREFIX}/preemptible" not in body["metadata"]["labels"]:
                body["metadata"]["labels"][f"{PREFIX}/name"] = self.rng.choice(sorted(self.leaves))
                self.world.api.put("Pod", body)

    def leaf_moves(self) -> None:
        """Between teams, with another size; its minimum stays above what is firmly used."""
        leaf = self.rng.choice(sorted(self.leaves))
        parent = self.rng.choice(self.teams)
        self.leaves[leaf] = parent
        self.put_quota(leaf, parent, least=4)

    def leaf_goes(self) -> None:
        leaf = self.rng.choice(sorted(self.leaves))
        del self.leaves[leaf]
        self.world.api.remove("ElasticQuota", leaf, "quotas")

    def leaf_comes(self) -> None:
        self.count += 1
        self.leaves[f"new-{self.count}"] = parent = self.rng.choice(self.teams)
        self.put_quota(f"new-{self.count}", parent)

    def node_comes(self) -> None:
        self.count += 1
        self.world.api.put("Node", self.node(f"node-{self.count}"))

    def node_is_resized(self) -> None:
        (_, name) = self.rng.choice(sorted(self.world.api.objects["Node"]))
        self.world.api.put("Node", self.node(name))

    def node(self, name: str) -> Json:
        body: Json = {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}, "spec": {}}
        cpu = str(self.rng.randrange(20, 90))
        body["status"] = {"allocatable": {"cpu": cpu, "memory": "4Ti", "pods": "1000"}}
        return body


def seen(world: World, plugin: ElasticQuota) -> SlowQuotas:
    """What the API says, added up from nothing."""
    slow = SlowQuotas()
    tree = plugin.book.forest.tree("")
    assert tree is not None
    slow.total = nanos_of(tree.total)
    for body in world.api.objects["ElasticQuota"].values():
        spec = QuotaSpec.of(decode.from_builtins(body, ElasticQuotaObject))
        if spec.name != ROOT:
            slow.specs[spec.name] = spec
    for body in world.api.pods():
        pod = decode.from_builtins(body, Pod)
        name = pod.metadata.labels[f"{PREFIX}/name"]
        slow.pods[pod.key] = (
            name if name in slow.specs else DEFAULT,
            QuotaPodRequest(
                key=pod.key,
                request=pod_resources.requests(pod),
                is_on_node=bool(pod.spec.node_name),
                is_preemptible=f"{PREFIX}/preemptible" not in pod.metadata.labels,
            ),
        )
    slow.begin()
    return slow


def check(world: World, plugin: ElasticQuota) -> None:
    tree = plugin.book.forest.tree("")
    assert tree is not None
    slow = seen(world, plugin)
    runtimes = slow.runtimes()
    tree.settle()
    standings: dict[str, Standing] = {}
    for name in (ROOT, *slow.specs):
        found = tree.bring_up_to_date(name)
        assert found is not None, name
        below = found.below
        assert total_of([below.used]) == slow.below(name), name
        assert total_of([below.request]) == slow.child_request(name), name
        firm = total_of([below.non_preemptible_used])
        assert firm == slow.below(name, fixed=True), name
        if name in (SYSTEM, DEFAULT):
            continue
        if name != ROOT:
            assert total_of([found.runtime]) == total_of([runtimes[name]]), name
            assert found.spec.is_parent or not above(firm, found.min), name
        total = slow.pool if name == ROOT else found.runtime
        standings[name] = Standing(found.spec, found.limited_request, found.runtime, total)
    assert list(broken_promises(standings)) == []


@pytest.mark.parametrize("seed", [3, 20])
def test_a_running_scheduler_keeps_the_promises_of_a_tree_of_200_leaves(seed: int) -> None:
    async def story(world: World) -> None:
        town = Town(world, seed)
        assert len(town.leaves) == 200
        plugin = plugin_of(world)
        for _ in range(STEPS):
            town.step()
            await world.settle(2.5)
            check(world, plugin)

        for body in list(world.api.objects["Node"].values()):  # from here on only quotas say no
            body["status"]["allocatable"]["cpu"] = "90"
            world.api.put("Node", body)
        world.api.put(
            "Node",
            town.node("last") | {"status": {"allocatable": {"cpu": "90", "pods": "1000", "memory": "1Ti"}}},
        )
        await world.settle(60)
        check(world, plugin)
        registry = ResourceRegistry()
        waiting = [decode.from_builtins(body, Pod) for body in world.api.pods()]
        waiting = [pod for pod in waiting if not pod.spec.node_name]
        assert len(waiting) < len(world.api.pods())
        for pod in waiting:
            place = plugin.checks.place_of(pod)
            assert isinstance(place, PodQuota)
            assert not plugin.checks.has_room(PodInfo.of(pod, registry), place), pod.key

    play(story)
