"""CustomResourceDefinitions: what the server fills in, and what serving one takes. Pure.

Source: the strategy, naming and establishing controllers of apiextensions-apiserver.
"""

from typing import Any

from koordinator.api.kinds import BUILT_IN
from koordinator.api.meta import Resource
from koordinator.cluster.errors import StatusCause
from koordinator.local.registry.reading import FieldReader
from koordinator.local.registry.strategies import RestStrategy, StrategyContext
from koordinator.local.schema import errors as fields
from koordinator.local.selectors import text_at

TABLE = "customresourcedefinitions.apiextensions.k8s.io"
CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"


class DefinitionStrategy(RestStrategy):
    """A definition is established at once; it goes when its objects are gone."""

    def prepare_create(self, obj: dict[str, Any], around: StrategyContext, now: str) -> list[StatusCause]:
        meta = obj["metadata"]
        if CLEANUP_FINALIZER not in (meta.get("finalizers") or ()):
            meta["finalizers"] = [*(meta.get("finalizers") or ()), CLEANUP_FINALIZER]
        obj["spec"] = with_names(obj.get("spec") or {})
        others = [record.obj for record in around.store.table(TABLE).records()]
        clash = conflict(obj, others)
        obj["status"] = {
            "conditions": _conditions(clash, now),
            "acceptedNames": {} if clash[0] else obj["spec"].get("names", {}),
            "storedVersions": [stored_version(obj)] if stored_version(obj) else [],
        }
        return []

    def prepare_update(
        self, obj: dict[str, Any], old: dict[str, Any], around: StrategyContext
    ) -> list[StatusCause]:
        obj["spec"] = with_names(obj.get("spec") or {})
        causes = _changed_identity(obj["spec"], old["spec"])
        status = dict(old.get("status") or {})
        stored = list(status.get("storedVersions") or ())
        if stored_version(obj) not in stored:
            stored.append(stored_version(obj))
        status["storedVersions"] = stored
        if is_established(old):
            status["acceptedNames"] = obj["spec"].get("names", {})
        obj["status"] = status
        return causes


def _changed_identity(spec: dict[str, Any], old: dict[str, Any]) -> list[StatusCause]:
    """Return what may not change, because stored objects and their addresses hang on it."""
    pairs = [
        ("spec.group", spec.get("group"), old.get("group")),
        ("spec.scope", spec.get("scope"), old.get("scope")),
        ("spec.names.kind", spec["names"].get("kind"), old["names"].get("kind")),
        ("spec.names.plural", spec["names"].get("plural"), old["names"].get("plural")),
    ]
    return [fields.invalid(field, new, "field is immutable") for field, new, was in pairs if new != was]


def conflict(crd: dict[str, Any], others: list[dict[str, Any]]) -> tuple[str, str]:
    """Reason and message when a name is taken in the definition's group; two empty texts when none is."""
    spec, group = crd["spec"], crd["spec"].get("group")
    mine = spec["names"]
    taken = [{"plural": one.plural, "kind": one.kind} for one in BUILT_IN if one.group == group]
    taken += [
        other["spec"]["names"]
        for other in others
        if other["spec"].get("group") == group and is_established(other)
    ]
    for field, reason in (("plural", "PluralConflict"), ("kind", "KindConflict")):
        if mine.get(field) and any(names.get(field) == mine[field] for names in taken):
            return reason, f'"{mine[field]}" is already in use'
    return "", ""


def is_established(crd: dict[str, Any]) -> bool:
    """Return whether its names were accepted, so that it can be served."""
    conditions = (crd.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "Established" and one.get("status") == "True" for one in conditions)


def _conditions(clash: tuple[str, str], now: str) -> list[dict[str, Any]]:
    if clash[0]:
        refused = ("Established", "False", "NotAccepted", "not all names are accepted")
        rows = [("NamesAccepted", "False", *clash), refused]
    else:
        accepted = ("Established", "True", "InitialNamesAccepted", "the initial names have been accepted")
        rows = [("NamesAccepted", "True", "NoConflicts", "no conflicts found"), accepted]
    return [
        {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now}
        for kind, status, reason, message in rows
    ]


def with_names(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the spec with the names and the conversion that follow from the rest."""
    names = dict(spec.get("names") or {})
    if names.get("kind"):
        names.setdefault("singular", names["kind"].lower())
        names.setdefault("listKind", names["kind"] + "List")
    return {**spec, "names": names, "conversion": spec.get("conversion") or {"strategy": "None"}}


def stored_version(crd: dict[str, Any]) -> str:
    """Return the version in which objects are stored; empty when the definition names none."""
    versions = (crd.get("spec") or {}).get("versions") or ()
    return next((one.get("name") or "" for one in versions if one.get("storage")), "")


def _version(crd: dict[str, Any], name: str) -> dict[str, Any]:
    return next((one for one in crd["spec"]["versions"] if one.get("name") == name), {})


def stored_resource(crd: dict[str, Any], served: list[Resource]) -> Resource:
    """Return the address of the stored version, which may not be served itself."""
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
    """Return the paths of the scale subresource by their names in `scale.Paths`, if there is one."""
    scale = (_version(crd, stored_version(crd)).get("subresources") or {}).get("scale")
    if not scale:
        return None
    return {
        "spec_replicas_path": scale.get("specReplicasPath", ".spec.replicas"),
        "status_replicas_path": scale.get("statusReplicasPath", ".status.replicas"),
        "label_selector_path": scale.get("labelSelectorPath", ""),
    }
