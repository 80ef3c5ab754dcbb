"""List what is served: every kind with its table, facts, strategy, schemas and versions.

Events go by themselves, an hour after they were last written, or when there are too many. For
CustomResourceDefinitions: what the server fills in, and what serving one takes. Source: the strategy, naming and
establishing controllers of apiextensions-apiserver.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import msgspec

from koordinator.api.kinds import BUILT_IN
from koordinator.api.meta import Resource
from koordinator.cluster.backend import ObjectRecord
from koordinator.cluster.errors import StatusCause
from koordinator.local.change_log import Key
from koordinator.local.registry import refusals, strategies
from koordinator.local.registry.conversion import AUTOSCALERS, EVENTS, Converter
from koordinator.local.registry.pods import PodStrategy
from koordinator.local.registry.reading import INDEXES, SELECTABLE, FieldReader
from koordinator.local.registry.scale import BUILTIN_PATHS, Paths
from koordinator.local.registry.strategies import (
    DaemonSetStrategy,
    JobStrategy,
    KindFacts,
    NamespaceStrategy,
    RestStrategy,
    ServiceStrategy,
    StrategyContext,
    VolumeStrategy,
)
from koordinator.local.schema import errors as fields
from koordinator.local.selectors import text_at
from koordinator.local.store import ObjectStore, Table

CRD_TABLE = "customresourcedefinitions.apiextensions.k8s.io"
CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"


class DefinitionStrategy(RestStrategy):
    """A definition is established at once; it goes when its objects are gone."""

    def prepare_create(self, obj: dict[str, Any], around: StrategyContext, now: str) -> list[StatusCause]:
        meta = obj["metadata"]
        if CLEANUP_FINALIZER not in (meta.get("finalizers") or ()):
            meta["finalizers"] = [*(meta.get("finalizers") or ()), CLEANUP_FINALIZER]
        obj["spec"] = with_names(obj.get("spec") or {})
        others = [record.obj for record in around.store.table(CRD_TABLE).records()]
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
    return is_condition_true(crd, "Established")


def is_condition_true(obj: dict[str, Any], kind: str) -> bool:
    """Return whether the condition of a type is there and True."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == kind and one.get("status") == "True" for one in conditions)


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


def scale_paths(crd: dict[str, Any]) -> Paths | None:
    """Return the paths of the scale subresource, if there is one."""
    scale = (_version(crd, stored_version(crd)).get("subresources") or {}).get("scale")
    return msgspec.convert(scale, Paths) if scale else None


_STRATEGIES: dict[str, type[RestStrategy]] = {
    "pods": PodStrategy,
    "namespaces": NamespaceStrategy,
    "persistentvolumes": VolumeStrategy,
    "services": ServiceStrategy,
    "daemonsets.apps": DaemonSetStrategy,
    "jobs.batch": JobStrategy,
    "customresourcedefinitions.apiextensions.k8s.io": DefinitionStrategy,
}

_EVENTS = "events"
_AUTOSCALERS = "horizontalpodautoscalers.autoscaling"
_NEW_EVENTS = "events.events.k8s.io"  # the same stored events under the names of another group


EVENT_LIFE_S = 3_600.0
"""Default of the API server's `--event-ttl`."""
EVENTS_MAX = 10_000
"""The newest stay. An hour of a busy cluster would be ten times as many."""
EVENTS_BYTES_MAX = 3 << 20
"""Text of the events that stay: some 4,500 of usual length, which take 6 MB with all that finds them."""
GONE_SPARE = 1_024
"""Objects that others deleted which may be noted still, beyond the number of those that are there."""


class Expiry:
    """Removes what was not written for `life_s`, and the oldest beyond `count_max` or, where objects are kept as text,
    `bytes_max` of it.

    It works off its queue whenever something is written to the table: a table that rests keeps its last objects.
    """

    def __init__(self, table: Table, life_s: float, count_max: int, bytes_max: int) -> None:
        self.table = table
        self._life_s = life_s
        self._count_max = count_max
        self._bytes_max = bytes_max
        # When each object was written last, oldest first; also of some that are gone by other hands.
        self._writes: OrderedDict[Key, float] = OrderedDict()

    def written(self, record: ObjectRecord, now_s: float) -> None:
        """Note a write, and remove what is over by now."""
        table, writes, meta = self.table, self._writes, record.obj["metadata"]
        key = meta["namespace"], meta["name"]
        writes[key] = now_s
        writes.move_to_end(key)
        while writes and (next(iter(writes.values())) + self._life_s <= now_s or self._is_full()):
            (namespace, name), _ = writes.popitem(last=False)
            if table.get(namespace, name) is not None:
                table.remove(namespace, name)
        if len(writes) > 2 * len(table) + GONE_SPARE:
            for key in [each for each in writes if table.get(*each) is None]:
                del writes[key]

    def _is_full(self) -> bool:
        return len(self.table) > self._count_max or self.table.text_bytes > self._bytes_max


class ServedKind:
    """One kind, in all the versions in which it is served. `resource` is the version that is stored."""

    def __init__(
        self,
        resource: Resource,
        table: Table,
        facts: KindFacts,
        strategy: RestStrategy,
        *,
        versions: Sequence[Resource],
        converter: Converter | None = None,
        selectable: dict[str, FieldReader] | None = None,
        is_custom: bool = False,
        scale_paths: Paths | None = None,
        expiry: Expiry | None = None,
    ) -> None:
        self.resource = resource
        self.table = table
        self.facts = facts
        self.strategy = strategy
        self.versions = {served.version: served for served in versions}
        self.selectable = selectable
        self.indexes = INDEXES.get(table.name, {})
        self.is_custom = is_custom
        self.is_terminating = False  # its definition is being deleted: no new objects
        self.scale_paths = scale_paths
        self.expiry = expiry
        self._converter = converter

    def shown(self, record: ObjectRecord, resource: Resource) -> ObjectRecord:
        """Return the record in the version that was asked for."""
        return record if self._converter is None else self._converter.shown(record, resource)

    def stored(self, obj: dict[str, Any]) -> dict[str, Any]:
        """Return an object of any served version as it is stored."""
        return obj if self._converter is None else self._converter.stored(obj)

    @property
    def is_converted(self) -> bool:
        return self._converter is not None


class Kinds:
    """All kinds by group and plural."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._kinds: dict[tuple[str, str], ServedKind] = {}
        events = store.table(_EVENTS, INDEXES[_EVENTS], packed=True)
        self.event_expiry = Expiry(events, EVENT_LIFE_S, EVENTS_MAX, EVENTS_BYTES_MAX)
        for resource in BUILT_IN:
            known = self._kinds.get((resource.group, resource.plural))
            if known is None:
                self._kinds[(resource.group, resource.plural)] = self._builtin(resource)
            else:
                known.versions[resource.version] = resource

    def resources(self) -> list[Resource]:
        return [served for kind in self._kinds.values() for served in kind.versions.values()]

    def find(self, group: str, version: str, plural: str) -> tuple[ServedKind, Resource]:
        """Raises: NotFound when nobody serves that."""
        kind = self._kinds.get((group, plural))
        served = None if kind is None else kind.versions.get(version)
        if kind is None or served is None:
            raise refusals.not_served()
        return kind, served

    def of_group(self, group: str, plural: str) -> ServedKind | None:
        return self._kinds.get((group, plural))

    def serve_custom(
        self,
        stored: Resource,
        versions: Sequence[Resource],
        selectable: dict[str, FieldReader],
        scale_paths: Paths | None,
    ) -> ServedKind:
        """Serve a custom resource (again); its objects stay."""
        versions = [served for served in versions if served.plural == stored.plural]
        has_status = "status" in stored.subresources
        kind = ServedKind(
            stored,
            self._store.table(stored.qualified),
            strategies.CUSTOM,
            RestStrategy(stored, strategies.CUSTOM, has_status),
            versions=versions,
            converter=Converter(stored),
            selectable=selectable,
            is_custom=True,
            scale_paths=scale_paths,
        )
        self._kinds[(stored.group, stored.plural)] = kind
        return kind

    def stop_serving(self, group: str, plural: str) -> None:
        """Forget a custom resource whose objects are all gone."""
        kind = self._kinds.pop((group, plural), None)
        if kind is not None:
            self._store.drop(kind.table.name)

    def _builtin(self, resource: Resource) -> ServedKind:
        name = _EVENTS if resource.qualified == _NEW_EVENTS else resource.qualified
        facts = strategies.FACTS.get(resource.qualified, strategies.PLAIN)
        strategy = _STRATEGIES.get(resource.qualified, RestStrategy)
        converter = None
        if resource.qualified == _NEW_EVENTS:
            stored = next(one for one in BUILT_IN if one.qualified == _EVENTS)
            converter = Converter(stored, EVENTS)
        elif resource.qualified == _AUTOSCALERS:
            converter = Converter(resource, AUTOSCALERS)
        return ServedKind(
            resource,
            self._store.table(name, INDEXES.get(name)),
            facts,
            strategy(resource, facts, "status" in resource.subresources),
            versions=(resource,),
            converter=converter,
            selectable=SELECTABLE.get(name),
            scale_paths=BUILTIN_PATHS if "scale" in resource.subresources else None,
            expiry=self.event_expiry if name == _EVENTS else None,
        )
