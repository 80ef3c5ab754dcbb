"""What fair shares cost: a pod more in a tree of quotas, the runtime that follows, and the check of a pod.

The peer is what upstream's lazy refresh amounts to: each level of the path computed with one claim per child.
"""

import random
import time

from koordinator.api import resource_list
from koordinator.api.resource_list import Amounts
from koordinator.scheduler.plugins.elastic_quota import admission
from koordinator.scheduler.plugins.elastic_quota.amounts import nanos_of, nanos_per_unit, to_units
from koordinator.scheduler.plugins.elastic_quota.quota import DEFAULT, ROOT, SYSTEM, PodAsk, QuotaSpec
from koordinator.scheduler.plugins.elastic_quota.runtime import Claim, fair_shares
from koordinator.scheduler.plugins.elastic_quota.tree import QuotaTree

SHAPES = ((10, 10), (10, 10, 10), (20, 20, 25), (100, 100), (10_000,))
"""Children per quota, level by level."""
PODS = 50_000
ROUNDS = 200
CHECKS = 5_000
CORES, GIBIBYTES = 200_000, 800_000
RESOURCES = ("cpu", "memory")


def amounts(cores: int, gibibytes: int) -> Amounts:
    """A list of both resources."""
    return resource_list.of({"cpu": cores, "memory": f"{gibibytes}Gi"})


def planted(shape: tuple[int, ...], rng: random.Random) -> tuple[QuotaTree, list[str]]:
    """A tree with that many children at each level, and the names of its leaves."""
    endless = amounts(10**9, 10**9)
    tree = QuotaTree(reserved={SYSTEM: endless, DEFAULT: endless})
    tree.total = amounts(CORES, GIBIBYTES)
    parents, quotas = [ROOT], 1
    for depth, count in enumerate(shape):
        quotas *= count
        children = []
        for parent in parents:
            for number in range(count):
                name = f"{parent}-{number}"
                spec = QuotaSpec(
                    name=name,
                    parent=parent,
                    is_parent=depth + 1 < len(shape),
                    min=amounts(CORES // (2 * quotas), GIBIBYTES // (2 * quotas)),
                    max=amounts(CORES, GIBIBYTES),
                    weight=amounts(rng.randint(1, 1000), rng.randint(1, 1000)),
                )
                tree.set_quota(spec)
                children.append(name)
        parents = children
    return tree, parents


def recomputed(tree: QuotaTree, name: str) -> None:
    """The peer: every level of the path with all its children."""
    for parent in reversed(tree.path(name)[1:]):
        children = [quota for each in tree.children(parent) if (quota := tree.get(each)) is not None]
        for resource in RESOURCES:
            unit = nanos_per_unit(resource)
            claims = [
                Claim(
                    name=child.spec.name,
                    weight=to_units(child.weight.get(resource, 0), unit),
                    request=to_units(child.limited_request.get(resource, 0), unit),
                    min=to_units(child.auto_min.get(resource, 0), unit),
                    lends=child.lends,
                )
                for child in children
            ]
            fair_shares(CORES * 1000, claims)


def pod(key: str, rng: random.Random) -> PodAsk:
    """A pod of some cores."""
    request = amounts(rng.randint(1, 8), rng.randint(1, 32))
    return PodAsk(key=key, request=request, is_on_node=rng.random() < 0.5)


def measure(shape: tuple[int, ...]) -> None:
    """One line of the table."""
    rng = random.Random(1)
    tree, leaves = planted(shape, rng)
    asked = [(rng.choice(leaves), pod(f"d/{number}", rng)) for number in range(PODS)]
    began_s = time.process_time()
    for name, ask in asked:
        tree.add_pod(name, ask)
    add_us = (time.process_time() - began_s) / PODS * 1e6
    updates = []
    for number in range(ROUNDS):
        name, ask = rng.choice(leaves), pod(f"d/x{number}", rng)
        began_s = time.process_time()
        tree.add_pod(name, ask)
        tree.bring_up_to_date(name)
        updates.append(time.process_time() - began_s)
    updates.sort()
    request = nanos_of(amounts(2, 4))
    began_s = time.process_time()
    for number in range(CHECKS):
        quota = tree.bring_up_to_date(leaves[number % 7])
        assert quota is not None
        admission.has_room(request, quota, quota.runtime)
    check_us = (time.process_time() - began_s) / CHECKS * 1e6
    began_s = time.process_time()
    for _ in range(3):
        recomputed(tree, rng.choice(leaves))
    peer_us = (time.process_time() - began_s) / 3 * 1e6
    update_us = updates[ROUNDS // 2] * 1e6
    label = " x ".join(f"{count:,}" for count in shape)
    print(
        f"{label:>14} {len(leaves):>7,} {add_us:>8.1f} {update_us:>10.0f} {updates[-1 - ROUNDS // 100] * 1e6:>9.0f} "
        f"{check_us:>9.1f} {peer_us / update_us:>11.1f} x"
    )


def main() -> None:
    """Print the table."""
    print(f"{PODS:,} pods; CPU time in microseconds; half of the demand fits")
    print(
        f"{'tree':>14} {'leaves':>7} {'add pod':>8} {'runtime p50':>10} {'p99':>7} {'check':>9} {'recomputed':>13}"
    )
    for shape in SHAPES:
        measure(shape)


if __name__ == "__main__":
    main()
