"""A cluster whose next calls fail, and which counts what was written."""

from collections.abc import Mapping
from typing import Any, TypeVar

from koordinator.api.meta import Object
from koordinator.cluster.backend import Backend
from koordinator.cluster.memory import MemoryCluster

T = TypeVar("T", bound=Object)


class FaultyCluster(MemoryCluster):
    """`faults` are raised by the next calls, one each; a call that fails changes nothing."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.faults: list[Exception] = []
        self.writes: list[str] = []
        """Verb and kind of the writes that succeeded."""

    async def get(self, view: type[T], name: str, namespace: str = "") -> T:
        self._fail()
        return await super().get(view, name, namespace)

    async def create(self, view: type[T], obj: Mapping[str, Any], namespace: str = "") -> T:
        self._fail()
        made = await super().create(view, obj, namespace)
        self.writes.append(f"create {view.resource.kind}")
        return made

    async def patch(self, view: type[T], name: str, patch: Any, namespace: str = "", **options: Any) -> T:
        self._fail()
        patched = await super().patch(view, name, patch, namespace, **options)
        self.writes.append(
            "/".join(filter(None, (f"patch {view.resource.kind}", options.get("subresource"))))
        )
        return patched

    def _fail(self) -> None:
        if self.faults:
            raise self.faults.pop(0)
