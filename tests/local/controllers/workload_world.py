"""Builders and questions for tests of workload controllers."""

from collections.abc import Callable
from typing import Any, TypeVar

from koordinator.api.core import Event, Pod
from koordinator.api.meta import Object
from koordinator.local.cluster import workloads
from tests.local.controllers.fake_kubelet import FakeKubelet, Fate
from tests.local.controllers.world import Build, Runs, World

V = TypeVar("V", bound=Object)

LABELS = {"app": "web"}


def controllers(fate_of: Callable[[Pod], Fate] = lambda _: Fate()) -> Build:
    """All workload controllers and a kubelet that plays `fate_of`; it is kept as `world.kubelet`."""

    def build(world: World) -> list[Runs]:
        kubelet = FakeKubelet(world, fate_of)
        world.kubelet = kubelet  # type: ignore[attr-defined]
        return [kubelet, *workloads(world.cluster, world.factory, world.rng)]

    return build


def template(image: str = "a", labels: dict[str, str] = LABELS, **spec: Any) -> dict[str, Any]:
    """A pod template; pods take their time to stop, as `Fate.stop_s` says."""
    own = {"containers": [{"name": "c", "image": image}], "terminationGracePeriodSeconds": 30}
    return {"metadata": {"labels": labels}, "spec": own | spec}


async def make(world: World, view: type[V], name: str = "web", **spec: Any) -> V:
    """Create a workload that selects `LABELS`."""
    body = {
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": LABELS}, "template": template(), **spec},
    }
    return await world.cluster.create(view, body, "default")


async def pods(world: World) -> list[Pod]:
    return (await world.cluster.list(Pod, "default")).items


async def pod_names(world: World) -> list[str]:
    return sorted(pod.metadata.name for pod in await pods(world))


async def fetch(world: World, view: type[V], name: str = "web") -> V:
    return await world.cluster.get(view, name, "default")


async def edit(world: World, view: type[V], name: str = "web", **spec: Any) -> V:
    """Change members of the spec."""
    return await world.cluster.patch(view, name, {"spec": spec}, "default")


async def events_of(world: World, reason: str) -> list[Event]:
    found = (await world.cluster.list(Event, "default")).items
    return [event for event in found if event.reason == reason]
