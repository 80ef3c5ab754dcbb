"""An API for scheduler tests: objects, watches, bindings, and faults on demand."""

import asyncio
import copy
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeVar

from koordinator.api import decode
from koordinator.api.meta import Object
from koordinator.clock import Clock, rfc3339
from koordinator.cluster import errors
from koordinator.cluster.protocol import EventType, Page, WatchEvent

T = TypeVar("T", bound=Object)
Json = dict[str, Any]


class FakeCluster:
    """`fail_next[call]` are errors that the next calls of that name raise."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.objects: dict[str, dict[tuple[str, str], Json]] = {}
        self.history: list[tuple[str, EventType, Json]] = []
        self.fail_next: dict[str, list[Exception]] = {}
        self.unserved: tuple[str, ...] = ()
        self.hold_deletions = False
        self.bindings: list[tuple[str, str]] = []
        self.patches: list[tuple[str, Any]] = []
        self._changed = asyncio.Event()
        self._uids = itertools.count(1)

    # What a test does

    def put(self, kind: str, obj: Json) -> Json:
        """Create or replace."""
        obj = copy.deepcopy(obj)
        meta = obj.setdefault("metadata", {})
        key = (meta.get("namespace", ""), meta["name"])
        of_kind = self.objects.setdefault(kind, {})
        is_new = key not in of_kind
        meta.setdefault("uid", of_kind[key]["metadata"]["uid"] if not is_new else f"uid-{next(self._uids)}")
        meta["resourceVersion"] = str(len(self.history) + 1)
        of_kind[key] = obj
        self._publish(kind, EventType.ADDED if is_new else EventType.MODIFIED, obj)
        return obj

    def remove(self, kind: str, name: str, namespace: str = "") -> None:
        obj = self.objects[kind].pop((namespace, name))
        self._publish(kind, EventType.DELETED, obj)

    def pods(self) -> list[Json]:
        return list(self.objects.get("Pod", {}).values())

    def events(self, reason: str) -> list[Json]:
        return [event for event in self.objects.get("Event", {}).values() if event["reason"] == reason]

    def placements(self) -> dict[str, str]:
        return {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in self.pods()}

    # Cluster

    async def get(self, view: type[T], name: str, namespace: str = "") -> T:
        return decode.from_builtins(self._find(view, name, namespace), view)

    async def list(
        self,
        view: type[T],
        namespace: str = "",
        *,
        transform: Callable[[T], T] | None = None,
        **_: Any,
    ) -> Page[T]:
        if view.resource.kind in self.unserved:
            raise errors.NotFound("the server could not find the requested resource")
        found = self.objects.get(view.resource.kind, {}).values()
        objects = [decode.from_builtins(obj, view) for obj in found]
        return Page([transform(obj) for obj in objects] if transform else objects, str(len(self.history)))

    async def watch(
        self, view: type[T], namespace: str = "", *, resource_version: str, **_: Any
    ) -> AsyncIterator[Sequence[WatchEvent[T]]]:
        position = int(resource_version)
        while True:
            new, position = self.history[position:], len(self.history)
            batch = [
                WatchEvent(type_, decode.from_builtins(obj, view), str(position))
                for kind, type_, obj in new
                if kind == view.resource.kind
            ]
            if batch:
                yield batch
            elif position == len(self.history):
                await self._changed.wait()

    async def create(self, view: type[T], obj: Mapping[str, Any], namespace: str = "") -> T:
        self._called("create")
        body = dict(obj)
        body["metadata"] = {**body["metadata"], "namespace": namespace}
        return decode.from_builtins(self.put(view.resource.kind, body), view)

    async def patch(self, view: type[T], name: str, patch: Any, namespace: str = "", **_: Any) -> T:
        self._called("patch")
        obj = copy.deepcopy(self._find(view, name, namespace))
        if patch.get("metadata", {}).get("uid", obj["metadata"]["uid"]) != obj["metadata"]["uid"]:
            raise errors.Conflict("uid differs")
        self.patches.append((name, patch))
        _merge(obj, patch)
        return decode.from_builtins(self.put(view.resource.kind, obj), view)

    async def delete(self, view: type[T], name: str, namespace: str = "", **_: Any) -> None:
        self._called("delete")
        if self.hold_deletions:
            obj = copy.deepcopy(self._find(view, name, namespace))
            obj["metadata"]["deletionTimestamp"] = rfc3339(self.clock.now())
            self.put(view.resource.kind, obj)
        else:
            self.remove(view.resource.kind, name, namespace)

    async def bind(self, namespace: str, pod: str, node: str, *, uid: str = "") -> None:
        await asyncio.sleep(0)
        self._called("bind")
        found = self.objects.get("Pod", {}).get((namespace, pod))
        if found is None:
            raise errors.not_found("pods", pod)
        if uid and found["metadata"]["uid"] != uid:
            raise errors.Conflict("uid differs")
        if found["spec"].get("nodeName"):
            raise errors.Conflict(f"pod {pod} is already assigned")
        self.bindings.append((pod, node))
        self.put("Pod", {**found, "spec": {**found["spec"], "nodeName": node}})

    async def evict(self, namespace: str, pod: str, **_: Any) -> None:
        self.remove("Pod", pod, namespace)

    async def request(self, method: str, path: str, *_: Any) -> Json:
        raise errors.NotFound(path)

    def _find(self, view: type[Object], name: str, namespace: str) -> Json:
        found = self.objects.get(view.resource.kind, {}).get((namespace, name))
        if found is None:
            raise errors.not_found(view.resource.qualified, name)
        return found

    def _called(self, what: str) -> None:
        if self.fail_next.get(what):
            raise self.fail_next[what].pop(0)

    def _publish(self, kind: str, type_: EventType, obj: Json) -> None:
        self.history.append((kind, type_, obj))
        self._changed.set()
        self._changed = asyncio.Event()


def _merge(into: Json, patch: Json) -> None:
    """A merge patch; conditions merge by type, as the API server does for strategic ones."""
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif key == "conditions":
            kept = [c for c in into.get(key, []) if c["type"] not in {new["type"] for new in value}]
            into[key] = kept + list(value)
        elif isinstance(value, dict):
            _merge(into.setdefault(key, {}), value)
        else:
            into[key] = value
