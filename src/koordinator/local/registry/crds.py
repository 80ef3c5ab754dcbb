"""CustomResourceDefinitions: what the server fills in, and what serving one takes. Pure.

Source: the strategy, naming and establishing controllers of apiextensions-apiserver.
"""

from typing import Any

from koordinator.api.meta import Resource
from koordinator.cluster.errors import StatusCause
from koordinator.local.registry.selection import FieldReader
from koordinator.local.registry.strategies import Strategy, Surroundings
from koordinator.local.selectors import text_at

TABLE = "customresourcedefinitions.apiextensions.k8s.io"
CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"


class DefinitionStrategy(Strategy):
    """A definition is established at once; it goes when its objects are gone."""

    def prepare_create(self, obj: dict[str, Any], around: Surroundings, now: str) -> list[StatusCause]:
        meta = obj["metadata"]
        if CLEANUP_FINALIZER not in (meta.get("finalizers") or ()):
            meta["finalizers"] = [*(meta.get("finalizers") or ()), CLEANUP_FINALIZER]
        obj["spec"] = with_names(obj.get("spec") or {})
        obj["status"] = {
            "conditions": [
                _condition("NamesAccepted", "NoConflicts", "no conflicts found", now),
                _condition(
                    "Established", "InitialNamesAccepted", "the initial names have been accepted", now
                ),
            ],
            "acceptedNames": obj["spec"].get("names", {}),
            "storedVersions": [stored_version(obj)] if stored_version(obj) else [],
        }
        return []

    def prepare_update(
        self, obj: dict[str, Any], old: dict[str, Any], around: Surroundings
    ) -> list[StatusCause]:
        obj["spec"] = with_names(obj.get("spec") or {})
        status = dict(old.get("status") or {})
        stored = list(status.get("storedVersions") or ())
        if stored_version(obj) not in stored:
            stored.append(stored_version(obj))
        status["storedVersions"] = stored
        status["acceptedNames"] = obj["spec"].get("names", {})
        obj["status"] = status
        return []


def _condition(kind: str, reason: str, message: str, now: str) -> dict[str, Any]:
    return {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": now}


def with_names(spec: dict[str, Any]) -> dict[str, Any]:
    """The spec with the names and the conversion that follow from the rest."""
    names = dict(spec.get("names") or {})
    if names.get("kind"):
        names.setdefault("singular", names["kind"].lower())
        names.setdefault("listKind", names["kind"] + "List")
    return {**spec, "names": names, "conversion": spec.get("conversion") or {"strategy": "None"}}


def stored_version(crd: dict[str, Any]) -> str:
    """The version in which objects are stored; empty when the definition names none."""
    versions = (crd.get("spec") or {}).get("versions") or ()
    return next((one["name"] for one in versions if one.get("storage")), "")


def _version(crd: dict[str, Any], name: str) -> dict[str, Any]:
    return next((one for one in crd["spec"]["versions"] if one.get("name") == name), {})


def stored_resource(crd: dict[str, Any], served: list[Resource]) -> Resource:
    """The address of the stored version, which may not be served itself."""
    version = stored_version(crd)
    found = next((one for one in served if one.version == version), None)
    if found is not None:
        return found
    spec, names = crd["spec"], crd["spec"]["names"]
    return Resource(
        group=spec["group"],
        version=version,
        kind=names["kind"],
        plural=names["plural"],
        namespaced=spec.get("scope") == "Namespaced",
        subresources=tuple((_version(crd, version).get("subresources") or {}).keys()),
    )


def selectable_fields(crd: dict[str, Any]) -> dict[str, FieldReader]:
    """Fields that selectors may name (`selectableFields` of the stored version)."""
    fields = _version(crd, stored_version(crd)).get("selectableFields") or ()
    paths = [field["jsonPath"].removeprefix(".") for field in fields]
    return {path: text_at(path) for path in paths}


def scale_paths(crd: dict[str, Any]) -> dict[str, str] | None:
    """The paths of the scale subresource, if there is one."""
    scale = (_version(crd, stored_version(crd)).get("subresources") or {}).get("scale")
    return dict(scale) if scale else None
