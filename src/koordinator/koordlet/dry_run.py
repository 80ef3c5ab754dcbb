"""A cluster in which nothing is changed: what would be written is told instead."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from koordinator.api import decode
from koordinator.api.core import Event
from koordinator.api.meta import Object
from koordinator.cluster.protocol import Cluster, PatchType
from koordinator.cluster.write_through import ReadThrough

T = TypeVar("T", bound=Object)

WRITE_METHODS = frozenset(("POST", "PUT", "PATCH", "DELETE"))


class DryRunCluster(ReadThrough):
    """Reads from `cluster`; each write is handed to `tell` as one line and answered as if it had been done."""

    def __init__(self, cluster: Cluster, tell: Callable[[str], None]) -> None:
        super().__init__(cluster)
        self._tell = tell

    async def create(self, view: type[T], obj: Mapping[str, Any], namespace: str = "") -> T:
        if view is Event:
            about = obj.get("involvedObject", {})
            name = "/".join(filter(None, (about.get("namespace"), about.get("name"))))
            self._tell(f"event on {about.get('kind')} {name}: {obj.get('reason')}: {obj.get('message')}")
        else:
            self._say("create", view, namespace, obj.get("metadata", {}).get("name", ""), obj)
        return decode.from_builtins(dict(obj), view)

    async def patch(
        self,
        view: type[T],
        name: str,
        patch: Mapping[str, Any] | Sequence[Any],
        namespace: str = "",
        *,
        patch_type: PatchType = PatchType.MERGE,
        subresource: str = "",
        field_manager: str = "",
    ) -> T:
        self._say("patch", view, namespace, "/".join(filter(None, (name, subresource))), patch)
        return await self._inner.get(view, name, namespace)

    async def delete(
        self,
        view: type[T],
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        grace_period_s: int | None = None,
        propagation: str = "",
    ) -> None:
        self._say("delete", view, namespace, name, {})

    async def bind(self, namespace: str, pod: str, node: str, *, uid: str = "") -> None:
        self._tell(f"bind pods {namespace}/{pod} to {node}")

    async def evict(
        self, namespace: str, pod: str, *, uid: str = "", grace_period_s: int | None = None
    ) -> None:
        self._tell(f"evict pods {namespace}/{pod}")

    async def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        if method not in WRITE_METHODS:
            return await self._inner.request(method, path, body, params)
        self._tell(f"{method} {path} {_text(body)}")
        return dict(body or {})

    def _say(self, verb: str, view: type[Object], namespace: str, name: str, body: Any) -> None:
        where = "/".join(filter(None, (namespace, name)))
        self._tell(f"{verb} {view.resource.qualified} {where} {_text(body)}".rstrip())


def _text(body: Any) -> str:
    return msgspec.json.encode(body).decode() if body else ""
