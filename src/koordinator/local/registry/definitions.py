"""Serving custom resources: what follows from a write to a CustomResourceDefinition or to its objects."""

from typing import Any

from koordinator.cluster.backend import DeleteRequest
from koordinator.local.registry import kinds
from koordinator.local.registry.kinds import Kinds, ServedKind
from koordinator.local.registry.writing import ObjectWriter
from koordinator.local.schema import Catalog


class CustomDefinitions:
    """Keeps what is served in step with the stored definitions."""

    def __init__(self, kinds: Kinds, writer: ObjectWriter, catalog: Catalog) -> None:
        self._kinds = kinds
        self._writer = writer
        self._catalog = catalog

    def restore(self) -> None:
        """Serve everything that is defined in the store (after a start); saved events start their last hour."""
        for event in list(self._kinds.event_expiry.table.records()):
            self._kinds.event_expiry.written(event, self._writer.clock.now())
        for record in list(self._writer.store.table(kinds.CRD_TABLE).records()):
            self.written(record.obj)

    def written(self, crd: dict[str, Any]) -> None:
        """Note that a definition was created or changed: serve it as it is now, or begin to clean up after it."""
        spec = crd["spec"]
        group, plural = spec["group"], spec["names"]["plural"]
        kind = self._served(group, plural)
        if kind is not None or kinds.is_established(crd):
            kind = self._serve(crd)
        if "deletionTimestamp" in crd["metadata"]:
            if kind is not None:
                kind.is_terminating = True
                request = DeleteRequest(propagation="Background")
                for record in list(kind.table.records()):
                    self._writer.delete(kind, kind.resource, record, request)
            self.thinned(group, plural)

    def _serve(self, crd: dict[str, Any]) -> ServedKind:
        served = self._catalog.add_crd(crd)
        return self._kinds.serve_custom(
            kinds.stored_resource(crd, served),
            served,
            kinds.selectable_fields(crd),
            kinds.scale_paths(crd),
        )

    def _served(self, group: str, plural: str) -> ServedKind | None:
        """Return the custom kind of that name, if its definition was accepted."""
        kind = self._kinds.of_group(group, plural)
        return kind if kind is not None and kind.is_custom else None

    def removed(self, crd: dict[str, Any]) -> None:
        """Note that a definition is gone: its resource is no longer served."""
        spec = crd["spec"]
        group, plural = spec["group"], spec["names"]["plural"]
        if self._served(group, plural) is not None:
            self._kinds.stop_serving(group, plural)
            self._catalog.remove_crd(crd)

    def thinned(self, group: str, plural: str) -> None:
        """Note that an object of a custom resource is gone: the last one lets a deleted definition go."""
        kind = self._served(group, plural)
        if kind is not None and len(kind.table):
            return
        definitions = self._kinds.of_group("apiextensions.k8s.io", "customresourcedefinitions")
        assert definitions is not None
        record = definitions.table.get("", f"{plural}.{group}")
        if record is None or "deletionTimestamp" not in record.obj["metadata"]:
            return
        meta = record.obj["metadata"]
        kept = [name for name in meta.get("finalizers") or () if name != kinds.CLEANUP_FINALIZER]
        if kept:
            changed = {**record.obj, "metadata": {**meta, "finalizers": kept}}
            self._writer.overwrite(definitions, record, changed)
        else:
            definitions.table.remove("", meta["name"])
            self.removed(record.obj)
