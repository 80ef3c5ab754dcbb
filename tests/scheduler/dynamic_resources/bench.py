"""The plugin on an engine without an API: objects are told by hand, placements are written by hand."""

from typing import Any

from msgspec import to_builtins

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.dra import DeviceClass, ResourceClaim, ResourceSlice
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.api.meta import Object
from koordinator.clock import FixedClock
from koordinator.scheduler.config import config
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.results import Placed, Unplaced
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.plugins.dynamic_resources.claim_allocations import ClaimAllocations
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.dynamic_resources.builders import Json
from tests.scheduler.world import node


class Bench:
    """`gates`: as a flag would have them; `args`: those of the plugin."""

    def __init__(self, seed: int = 0, gates: str = "", **args: Any) -> None:
        own = {"name": "DynamicResources", "args": args}
        profile = {"schedulerName": "koord-scheduler", **({"pluginConfig": [own]} if args else {})}
        settings = config.decode({"profiles": [profile]})
        self.engine = Engine(
            settings,
            FixedClock(1_700_000_000.0),
            seed=seed,
            plugins=installed_plugins(),
            gates=FeatureGates.of(Component.SCHEDULER, gates),
        )
        [self.profile] = self.engine.profiles.values()
        self.objects: dict[tuple[type[Object], str], Any] = {}
        self._version = 0

    @property
    def books(self) -> ClaimAllocations:
        return self.engine.table.shared(ClaimAllocations)

    def node(self, name: str, **parts: Any) -> None:
        self.engine.table.set_node(from_builtins(node(name, **parts), Node))

    def put(self, view: type[Object], body: Json) -> Any:
        self._version += 1
        meta = {
            "uid": f"uid-{body['metadata']['name']}",
            **body["metadata"],
            "resourceVersion": str(self._version),
        }
        new = from_builtins({**body, "metadata": meta}, view)
        old = self.objects.get((view, new.metadata.name))
        self.objects[view, new.metadata.name] = new
        self.deliver(view, old, new)
        return new

    def remove(self, view: type[Object], name: str) -> None:
        self.deliver(view, self.objects.pop((view, name)), None)

    def deliver(self, view: type[Object], old: Any, new: Any) -> None:
        for handle in self.engine.handles:
            for watch in handle.watches:
                if watch.view is not view:
                    continue
                if old is None:
                    watch.on_add(new)
                elif new is None:
                    watch.on_delete(old)
                else:
                    watch.on_update(old, new)

    def slices(self, *bodies: Json) -> None:
        for body in bodies:
            self.put(ResourceSlice, body)

    def classes(self, *bodies: Json) -> None:
        for body in bodies:
            self.put(DeviceClass, body)

    def claims(self, *bodies: Json) -> None:
        for body in bodies:
            self.put(ResourceClaim, body)

    def place(self, body: Json) -> Placed | Unplaced:
        body = {**body, "metadata": {"uid": f"uid-{body['metadata']['name']}", **body["metadata"]}}
        pod = PodInfo.of(from_builtins(body, Pod), self.engine.table.registry)
        return self.engine.cycle.run(self.profile, pod, self.profile.class_key(pod), 1, 1_700_000_000.0)

    def promised(self) -> dict[str, Json]:
        """Allocations that are to be written, by claim."""
        return {promise.claim.metadata.name: promise.allocation for promise in self.books.promises}

    def write(self, name: str, user: str) -> None:
        """What PreBind does, and the news of it."""
        body = to_builtins(self.objects[ResourceClaim, name])
        users = [{"resource": "pods", "name": user, "uid": f"uid-{user}"}]
        promise = next(each for each in self.books.promises if each.claim.metadata.name == name)
        claim = self.put(
            ResourceClaim, {**body, "status": {"allocation": promise.allocation, "reservedFor": users}}
        )
        self.books.written(promise, claim)

    def forget(self, placed: Placed) -> None:
        self.engine.cycle.forget(self.profile, placed.pod, placed.evaluation, placed.node_name)
