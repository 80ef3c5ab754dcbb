"""Lives under koord-scheduler: quotas and Reservations, and pods that wait for room in them."""

from collections.abc import Callable
from typing import Any

import yaml

from koordinator.install.values import Values
from tests.real.components import scheduler_configuration
from tests.real.lives.drawing import Draw, Json, Life, Step, body_of
from tests.real.lives.scheduling import World, led

NAME = "koord-scheduler"
QUOTA = "quota.scheduling.koordinator.sh"
RUNTIME = f"{QUOTA}/runtime"
NEWER = ("BatchDuration", "FragmentationGradient", "RequiresIsolation")
"""Plugins of ours, which the original does not have."""


def configuration() -> Json:
    """What an installation mounts into the scheduler, without what the original does not know."""
    found: Json = yaml.safe_load(scheduler_configuration(Values()))
    found |= {"leaderElection": {"leaderElect": False}}
    found |= {"podInitialBackoffSeconds": 1, "podMaxBackoffSeconds": 1}
    [profile] = found["profiles"]
    for point in profile["plugins"].values():
        point["enabled"] = [each for each in point.get("enabled", ()) if each["name"] not in NEWER]
    for each in profile["pluginConfig"]:
        if each["name"] == "Reservation":
            del each["args"]["ignoredResources"]
    return found


class KoordWorld(World):
    """Pods that koord-scheduler places."""

    def pod(self, cpu: str = "", port: int = 0, **more: Any) -> Json:
        return super().pod(cpu, port, schedulerName=NAME, **more)


def life(world: World, steps: list[Step], *looks: str) -> Life:
    return {
        "looks": ["Pod", *looks],
        "scheduled": True,
        "scheduler": NAME,
        "nodes": world.nodes,
        "steps": steps,
    }


# Quotas

QUOTAS = ("root", "a", "b")


def quota(name: str, low: Json, high: Json, parent: str = "") -> Json:
    labels = {f"{QUOTA}/is-parent": str(name == "root").lower()}
    if parent:
        labels[f"{QUOTA}/parent"] = parent
    return body_of("ElasticQuota", name, {"min": low, "max": high}, labels=labels)


def amounts(draw: Draw, *cpus: int) -> Json:
    return {"cpu": str(draw.choice(cpus)), "memory": "4Gi"}


def quotas(draw: Draw) -> Life:
    world = KoordWorld(draw)

    def create() -> Step:
        labels = {"app": "web", f"{QUOTA}/name": draw.choice(QUOTAS[1:])}
        if draw.seldom():
            labels[f"{QUOTA}/preemptible"] = draw.choice(("true", "false"))
        return ["create", world.pod(labels=labels)]

    def resize() -> Step:
        spec = draw.choice(({"min": amounts(draw, 0, 1, 2)}, {"max": amounts(draw, 1, 2, 4, 6)}))
        return ["patch", "ElasticQuota", draw.choice(QUOTAS[1:]), {"spec": spec}]

    tree = [quota("root", amounts(draw, 3, 4, 6), amounts(draw, 6, 8, 20))]
    tree += [quota(name, amounts(draw, 0, 1, 2), amounts(draw, 2, 4, 6), "root") for name in QUOTAS[1:]]
    steps = [world.first(*tree), world.filled(create(), create(), create())]
    steps += led(
        draw,
        draw.randint(7, 10),
        *[create] * 6,
        *[resize] * 3,
        *[world.delete] * 3,
        *[world.node_acts] * 2,
        lambda: ["linger", draw.often()],
    )
    return life(world, [*steps, ["linger", False]], "ElasticQuota")


# Reservations


def reservations(draw: Draw) -> Life:
    world = KoordWorld(draw)
    names: list[str] = []

    def reserve() -> Step:
        name = f"$LIFE-r{len(names)}"
        names.append(name)
        pod = world.pod(draw.choice(("1", "2", "3")))
        world.pods.pop()
        template = {"metadata": {"labels": {"app": "kept"}}, "spec": pod["spec"]}
        owner = {"labelSelector": {"matchLabels": {"app": draw.choice(("web", "db"))}}}
        spec = {"template": template, "owners": [owner], "ttl": "24h"}
        spec |= draw.some(allocateOnce=(True, False, False), allocatePolicy=("Aligned", "Restricted"))
        return ["create", body_of("Reservation", name, spec, labels={"life": "$LIFE"})]

    def release() -> Step:
        return ["delete", "Reservation", draw.choice(names) if names else "$LIFE-r0", "Background"]

    def create() -> Step:
        return ["create", world.pod(**draw.some(nodeSelector=({"disk": "ssd"},)))]

    steps = [world.first(), reserve(), world.filled(create(), create())]
    steps += led(
        draw,
        draw.randint(7, 10),
        *[create] * 5,
        *[reserve] * 3,
        *[release] * 2,
        *[world.delete] * 3,
        *[world.node_acts] * 2,
        world.relabel,
        lambda: ["kubelet", [{"do": draw.choice(("succeed", "run"))}]],
    )
    return life(world, steps, "Reservation")


KINDS: dict[str, Callable[[Draw], Life]] = {
    "elastic-quotas": quotas,
    "reservations": reservations,
}
