"""Keep copies of the ConfigMaps and Secrets that lent pods refer to; each belongs to its pod and goes with it."""

from collections.abc import Mapping
from typing import Any

import msgspec

from koordinator.api import labels
from koordinator.api.core import ConfigMap, Secret
from koordinator.cluster import errors
from koordinator.cluster.protocol import Cluster
from koordinator.virtual_node import objects, translate
from koordinator.virtual_node.objects import Json, Lending, PodDocument
from koordinator.virtual_node.translate import Reference, Sharing

_VIEWS: Mapping[str, type[ConfigMap] | type[Secret]] = {
    translate.CONFIG_MAP: ConfigMap,
    translate.SECRET: Secret,
}
_CONTENT = ("data", "binaryData", "type")


class ObjectCopies:
    """Reads in the borrower, writes in the lender."""

    def __init__(self, lender: Cluster, borrower: Cluster, lending: Lending, sharing: Sharing) -> None:
        self._lender = lender
        self._borrower = borrower
        self._lending = lending
        self._sharing = sharing

    async def read(self, pod: PodDocument) -> dict[Reference, Json]:
        """Return the content of all that the pod refers to; without optional objects that are not there or must not
        leave. Raises: NotFound for one that it needs; ApiError."""
        found: dict[Reference, Json] = {}
        namespace = pod.metadata.namespace
        for one in translate.references(pod):
            if not self._sharing.allows(namespace, one):
                continue
            try:
                original = await self._borrower.get(_VIEWS[one.kind], one.name, namespace)
            except errors.NotFound:
                if one.is_optional:
                    continue
                raise
            body = msgspec.to_builtins(original)
            found[one] = {name: body[name] for name in _CONTENT if name in body}
        return found

    async def keep(self, lent: PodDocument, contents: Mapping[Reference, Json]) -> None:
        """Bring the copies of a lent pod to these contents. Raises: ApiError."""
        for one, content in contents.items():
            await self._write(lent, one, content)

    async def _write(self, lent: PodDocument, one: Reference, content: Json) -> None:
        meta, view = lent.metadata, _VIEWS[one.kind]
        name = objects.copy_name(meta.name, one.kind, one.name)
        try:
            there = await self._lender.get(view, name, meta.namespace)
        except errors.NotFound:
            await self._lender.create(view, self._body(lent, name, content), meta.namespace)
            return
        now = msgspec.to_builtins(there)
        patch: dict[str, Any] = {}
        for member in ("data", "binaryData"):
            before, after = now.get(member) or {}, content.get(member) or {}
            changed = {key: value for key, value in after.items() if before.get(key) != value}
            changed |= dict.fromkeys(before.keys() - after.keys())
            if changed:
                patch[member] = changed
        if patch:
            await self._lender.patch(view, name, patch, meta.namespace)

    def _body(self, lent: PodDocument, name: str, content: Json) -> Json:
        owner = {"apiVersion": "v1", "kind": "Pod", "name": lent.metadata.name, "uid": lent.metadata.uid}
        marks = {
            labels.VIRTUAL_NODE_SOURCE: self._lending.source,
            labels.VIRTUAL_NODE_BORROWER: self._lending.borrower,
        }
        return {"metadata": {"name": name, "labels": marks, "ownerReferences": [owner]}, **content}
