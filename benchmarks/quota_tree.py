"""What fair shares cost: a pod more in a tree of quotas, the runtime that follows, all runtimes after many changes,
places where usage is guaranteed, the check of a pod by the plugin, the loops beside it, and what a scheduler with
quotas places, beside one without them.

The peer of an update is what upstream's lazy refresh amounts to: each level of the path computed with one claim per
child. CPU time on one core.
"""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, cast

import msgspec

from benchmarks.scheduler import (
    NODES,
    NOW_S,
    best_s,
    engine_of,
    info_of,
    loaded_config,
    node_body,
    pod_body,
    queue_of,
)
from koordinator.api import labels, resource_list
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.resource_list import Amounts
from koordinator.api.sigs import ElasticQuota as ElasticQuotaObject
from koordinator.clock import FixedClock
from koordinator.cluster import garbage
from koordinator.cluster.protocol import Cluster
from koordinator.scheduler.config.config import SchedulerConfig
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.profile import Profile
from koordinator.scheduler.engine.results import Placed
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.plugins.elastic_quota.plugin import ElasticQuota
from koordinator.scheduler.plugins.elastic_quota.quota import (
    DEFAULT,
    ROOT,
    SYSTEM,
    QuotaPodRequest,
    QuotaSpec,
    nanos_per_unit,
    to_units,
)
from koordinator.scheduler.plugins.elastic_quota.runtime_calculator import ChildQuota, ChildQuotas
from koordinator.scheduler.plugins.elastic_quota.tree import GroupQuotaTree

SHAPES = (
    (100,),
    (10, 10),
    (10, 10, 10),
    (1_000,),
    (20, 20, 25),
    (100, 100),
    (10_000,),
    (30, 40, 25),
    (30_000,),
)
"""Children per quota, level by level."""
ODD_SHAPE = (10_000,)
"""Once more, with weights that have no common divisor: products of 124 bits."""
GUARANTEED_SHAPES = ((10_000,), (100, 100), (20, 20, 25))
PODS = 50_000
ROUNDS = 200
CHANGES = 100
"""Pods that come between two looks at the whole tree."""
CORES, GIBIBYTES = 200_000, 800_000
RESOURCES = ("cpu", "memory")
QUOTA_COUNTS = (0, 100, 1_000, 10_000, 30_000)
LOOPED_QUOTAS = (1_000, 10_000)
CHECKS, GANG = 5_000, 100
PLACED_PODS, PLACED_QUOTAS, REPEATS = 10_000, 1_000, 3


def amounts(cores: int, gibibytes: int) -> Amounts:
    """A list of both resources."""
    return resource_list.of({"cpu": cores, "memory": f"{gibibytes}Gi"})


def planted(
    shape: tuple[int, ...], rng: random.Random, *, is_odd: bool = False, keeps_guarantee: bool = False
) -> tuple[GroupQuotaTree, list[str]]:
    """A tree with that many children at each level, and the names of its leaves."""
    endless = amounts(10**9, 10**9)
    tree = GroupQuotaTree(reserved={SYSTEM: endless, DEFAULT: endless}, keeps_guarantee=keeps_guarantee)
    tree.total = amounts(CORES, GIBIBYTES)
    parents, quotas = [ROOT], 1
    for depth, count in enumerate(shape):
        quotas *= count
        children = []
        for parent in parents:
            for number in range(count):
                name = f"{parent}-{number}"
                weight = amounts(rng.randint(1, 1000), rng.randint(1, 1000))
                if is_odd:
                    weight = resource_list.of(
                        {"cpu": f"{rng.randrange(10**6)}m", "memory": rng.randrange(10**13)}
                    )
                spec = QuotaSpec(
                    name=name,
                    parent=parent,
                    is_parent=depth + 1 < len(shape),
                    min=amounts(CORES // (2 * quotas), GIBIBYTES // (2 * quotas)),
                    max=amounts(CORES, GIBIBYTES),
                    weight=weight,
                )
                tree.set_quota(spec)
                children.append(name)
        parents = children
    return tree, parents


def recomputed(tree: GroupQuotaTree, name: str) -> None:
    """The peer: every level of the path with all its children."""
    for parent in reversed(tree.path(name)[1:]):
        children = [quota for each in tree.children(parent) if (quota := tree.get(each)) is not None]
        for resource in RESOURCES:
            unit = nanos_per_unit(resource)
            entries = [
                ChildQuota(
                    weight=to_units(child.weight.get(resource, 0), unit),
                    request=to_units(child.limited_request.get(resource, 0), unit),
                    least=to_units(child.auto_min.get(resource, 0), unit),
                    lends=child.lends,
                )
                for child in children
            ]
            ChildQuotas(unit, entries).compute(CORES * 1000, None)


def pod(key: str, rng: random.Random) -> QuotaPodRequest:
    """A pod of some cores."""
    request = amounts(rng.randint(1, 8), rng.randint(1, 32))
    return QuotaPodRequest(key=key, request=request, is_on_node=rng.random() < 0.5)


def measure(shape: tuple[int, ...], *, is_odd: bool = False) -> None:
    """One line of the table of updates."""
    rng = random.Random(1)
    tree, leaves = planted(shape, rng, is_odd=is_odd)
    asked = [(rng.choice(leaves), pod(f"d/{number}", rng)) for number in range(PODS)]
    began_s = time.process_time()
    for name, ask in asked:
        tree.add_pod(name, ask)
    add_us = (time.process_time() - began_s) / PODS * 1e6
    tree.settle()
    updates = []
    for number in range(ROUNDS):
        name, ask = rng.choice(leaves), pod(f"d/x{number}", rng)
        began_s = time.process_time()
        tree.add_pod(name, ask)
        tree.bring_up_to_date(name)
        updates.append(time.process_time() - began_s)
    updates.sort()
    began_s, changed = time.process_time(), 0
    for turn in range(10):
        for number in range(CHANGES):
            tree.add_pod(rng.choice(leaves), pod(f"d/y{turn}-{number}", rng))
        changed += len(tree.settle())
    settle_ms = (time.process_time() - began_s) / 10 * 1e3 - CHANGES * add_us / 1e3
    began_s = time.process_time()
    for _ in range(3):
        recomputed(tree, rng.choice(leaves))
    peer_us = (time.process_time() - began_s) / 3 * 1e6
    update_us = updates[ROUNDS // 2] * 1e6
    label = " x ".join(f"{count:,}" for count in shape) + (" odd" if is_odd else "")
    print(
        f"{label:>14} {len(leaves):>7,} {add_us:>8.1f} {update_us:>10.0f} {updates[-1 - ROUNDS // 100] * 1e6:>7.0f} "
        f"{peer_us / update_us:>10.1f} x {settle_ms:>12.1f} {changed / 10:>9,.0f}",
        flush=True,
    )


def guarantees(shape: tuple[int, ...]) -> None:
    """What it costs that pods get their places: without, and with the gate ElasticQuotaGuaranteeUsage."""
    found = []
    for keeps_guarantee in (False, True):
        rng = random.Random(1)
        tree, leaves = planted(shape, rng, keeps_guarantee=keeps_guarantee)
        asked = [(rng.choice(leaves), pod(f"d/{number}", rng)) for number in range(PODS)]
        for name, ask in asked:
            tree.add_pod(name, msgspec.structs.replace(ask, is_on_node=False))
        half = PODS // 2
        began_s = time.process_time()
        for name, ask in asked[:half]:
            tree.reserve(name, ask.key)
        reserve_us = (time.process_time() - began_s) / half * 1e6
        tree.settle()
        updates = []
        for name, ask in asked[half : half + ROUNDS]:
            began_s = time.process_time()
            tree.reserve(name, ask.key)
            tree.bring_up_to_date(name)
            updates.append(time.process_time() - began_s)
        updates.sort()
        p50_us, p99_us = (updates[place] * 1e6 for place in (ROUNDS // 2, -1 - ROUNDS // 100))
        found.append(f"{reserve_us:>5.1f} µs, with its runtime {p50_us:>4.0f} (99 % within {p99_us:>5.0f})")
    label = " x ".join(f"{count:,}" for count in shape)
    print(f"{label:>14} a pod has its place: {found[0]}; guaranteed: {found[1]}", flush=True)


def quota_body(name: str, parent: str, low: int, high: int, *, is_parent: bool) -> dict[str, Any]:
    """An ElasticQuota."""
    own = {labels.QUOTA_PARENT: parent, labels.QUOTA_IS_PARENT: str(is_parent).lower()}
    return {
        "metadata": {"name": name, "namespace": "quotas", "labels": own},
        "spec": {
            "min": {"cpu": str(low), "memory": f"{4 * low}Gi"},
            "max": {"cpu": str(high), "memory": f"{4 * high}Gi"},
        },
    }


def with_quotas(engine: Engine, profile: Profile, count: int) -> tuple[ElasticQuota, list[str]]:
    """The plugin with nodes and that many quotas in departments of 100."""
    plugin = next(each for each in profile.plugins if isinstance(each, ElasticQuota))
    for number in range(NODES):
        plugin.book.set_node(from_builtins(node_body(number), Node))
    leaves = []
    for number in range(count):
        parent = f"dept-{number // 100}"
        bodies = [quota_body(f"team-{number}", parent, 4, 1_000, is_parent=False)]
        if number % 100 == 0:
            bodies.insert(0, quota_body(parent, "", 400, 100_000, is_parent=True))
        for body in bodies:
            plugin.book.set_quota(from_builtins(body, ElasticQuotaObject))
        leaves.append(f"team-{number}")
    return plugin, leaves


def members(count: int, leaves: list[str]) -> Iterator[dict[str, Any]]:
    """Pods, one quota after the other."""
    for number in range(count):
        yield pod_body(number, labels={labels.QUOTA_NAME: leaves[number % len(leaves)]})


def checks(count: int) -> None:
    """What the plugin's answer about a pod costs: where nothing changed, and after another pod came to its quota; for a
    whole gang; and that a pod got its place. No quotas: all pods are in the default one, as in most clusters."""
    engine = Engine(loaded_config(), FixedClock(NOW_S), plugins=installed_plugins())
    [profile] = engine.profiles.values()
    plugin, leaves = with_quotas(engine, profile, count)
    bodies = list(members(CHECKS + CHECKS // 5, leaves or [""]))
    pods = [info_of(body, engine) for body in bodies[:CHECKS]]
    gang = [info_of(body, engine) for body in members(GANG, leaves[:1] or [""])]
    for each in (*pods, *gang):
        plugin.book.set_pod(each.pod)
    for each in pods:
        plugin.live_key(each)
    more = [from_builtins(body, Pod) for body in bodies[CHECKS:]]

    def gangs() -> None:
        for _ in range(ROUNDS):
            plugin.room_for(gang)

    with garbage.collected_rarely():  # as in the running scheduler
        fresh_s = best_s(lambda: [plugin.live_key(each) for each in pods], REPEATS)
        gang_s = best_s(gangs, REPEATS)
        began_s = time.process_time()
        for each in pods:
            plugin.accounts.pod_assigned(0, each)
        reserved_us = (time.process_time() - began_s) / CHECKS * 1e6
        stale = []
        for each, new in zip(pods, more, strict=False):
            plugin.book.set_pod(new)
            began_s = time.process_time()
            plugin.live_key(each)
            stale.append(time.process_time() - began_s)
    stale.sort()
    print(
        f"{count:>14,} quotas: check {fresh_s / CHECKS * 1e6:>4.1f} µs, of a gang of {GANG} "
        f"{gang_s / ROUNDS * 1e6:>3.0f} µs; reserve {reserved_us:>4.1f} µs; check after another pod came "
        f"{stale[len(stale) // 2] * 1e6:>3.0f} µs (99 % within {stale[len(stale) * 99 // 100] * 1e6:>4.0f})",
        flush=True,
    )


class Evictions:
    """The part of a cluster that loops act on; answers at once."""

    count = 0

    async def evict(self, *_: Any, **__: Any) -> None:
        self.count += 1


async def loops(count: int) -> None:
    """What is done beside scheduling, for quotas with `PODS` pods together."""
    cluster, clock = Evictions(), FixedClock(NOW_S)
    engine = Engine(loaded_config(), clock, cluster=cast(Cluster, cluster), plugins=installed_plugins())
    [profile] = engine.profiles.values()
    plugin, leaves = with_quotas(engine, profile, count)
    pods = [from_builtins(body, Pod) for body in members(PODS, leaves)]
    for each in pods:
        plugin.book.set_pod(each)
        plugin.book.reserve(each.key)
    changes, over_use = plugin.accounts.changes, plugin.accounts.over_use
    listener = changes.listen()
    found: list[str] = []

    async def timed(what: str, step: Callable[[], Coroutine[Any, Any, object]]) -> None:
        began_s = time.process_time()
        await step()
        found.append(f"{what} {(time.process_time() - began_s) * 1e3:.1f} ms")

    async def spread() -> None:
        changes.spread()

    async def scrape() -> None:
        engine.metrics.text()

    async def look() -> None:
        touched, drifted = listener.take()
        await over_use.look({*touched, *drifted}, clock.now())

    def move(some: list[Pod]) -> None:
        for each in some:
            plugin.book.unreserve(each.key)
            plugin.book.reserve(each.key)

    await timed("all runtimes", spread)
    await timed("over-use of all", look)
    await timed("first scrape", scrape)
    move(pods[:CHANGES])
    await timed(f"after {CHANGES} pods: runtimes", spread)
    await timed("over-use", look)
    await timed("scrape", scrape)
    for number in range(NODES - NODES // 50):
        plugin.book.remove_node(from_builtins(node_body(number), Node))
    await timed("after the loss of 98 % of the nodes: runtimes", spread)
    await timed("over-use", look)
    await timed("again", look)
    clock.now_s += 1_000
    await timed("all evicted", look)
    print(f"{count:>14,} quotas: {', '.join(found)} ({cluster.count:,} pods)", flush=True)


def without_quotas() -> SchedulerConfig:
    """The same profile, where quotas have no say."""
    [profile] = loaded_config().profiles
    assert profile.plugins is not None
    plugins = msgspec.structs.asdict(profile.plugins)
    kept = {
        point: msgspec.structs.replace(
            chosen, enabled=[each for each in chosen.enabled if each.name != ElasticQuota.name]
        )
        for point, chosen in plugins.items()
        if hasattr(chosen, "enabled")
    }
    return SchedulerConfig(
        profiles=[msgspec.structs.replace(profile, plugins=msgspec.structs.replace(profile.plugins, **kept))]
    )


def place_s(count: int, *, quotas: bool) -> float:
    """CPU seconds per placement, from the informer to Reserve."""
    engine, profile = engine_of(NODES) if quotas else engine_of(NODES, config=without_quotas())
    leaves = [f"team-{number}" for number in range(count)]
    plugin = with_quotas(engine, profile, count)[0] if quotas else None
    queue = queue_of(profile)
    pods = [info_of(body, engine) for body in members(PLACED_PODS, leaves)]
    with garbage.collected_rarely():  # as in the running scheduler
        began_s = time.process_time()
        for each in pods:
            if plugin is not None:
                plugin.book.set_pod(each.pod)
            queue.add(each, profile.name, profile.class_key(each), NOW_S)
        while entry := queue.pop(NOW_S):
            placed = engine.cycle.run(profile, entry.pod, entry.class_key, entry.attempt_count, NOW_S)
            assert isinstance(placed, Placed), placed
            queue.done(entry.pod.uid)
        return (time.process_time() - began_s) / len(pods)


def placements() -> None:
    """10,000 pods over more and more quotas, beside a scheduler without the plugin."""
    alone_s = min(place_s(PLACED_QUOTAS, quotas=False) for _ in range(REPEATS))
    print(f"{PLACED_PODS:,} pods on {NODES:,} nodes without quotas: {alone_s * 1e6:.0f} µs each", flush=True)
    for count in (100, PLACED_QUOTAS, 10_000):
        found_s = min(place_s(count, quotas=True) for _ in range(REPEATS))
        print(
            f"{count:>14,} quotas: {found_s * 1e6:>5.0f} µs each, {found_s / alone_s:.2f} times", flush=True
        )


def main() -> None:
    """Print the tables."""
    print(
        f"{PODS:,} pods; µs of CPU; half of the demand fits; settle: {CHANGES} more pods, then all runtimes"
    )
    print(
        f"{'tree':>14} {'leaves':>7} {'add pod':>8} {'update p50':>10} {'p99':>7} {'recomputed':>12} "
        f"{'settle ms':>12} {'changed':>9}"
    )
    for shape in SHAPES:
        measure(shape)
    measure(ODD_SHAPE, is_odd=True)
    for shape in GUARANTEED_SHAPES:
        guarantees(shape)
    for count in QUOTA_COUNTS:
        checks(count)
    for count in LOOPED_QUOTAS:
        asyncio.run(loops(count))
    placements()


if __name__ == "__main__":
    main()
