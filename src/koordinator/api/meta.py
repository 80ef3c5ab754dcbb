"""The parts that all API objects share: their address (`Resource`), their metadata, references from one to another,
and the base of typed views.

A *view* is a frozen msgspec struct with the fields that some component reads. It is decoded from the wire and never
written back; writes are patches (`cluster.protocol`).
"""

import re
import sys
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Protocol, TypeVar

import msgspec

from koordinator.api.schema import DATE_TIME, REQUIRED, always, at_least, limits, one_of


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a kind in the Kubernetes API.

    `group` is empty for the core group. `subresources` lists those that the API serves besides the object
    itself (`status`, `scale`, `binding`, `eviction`).
    """

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()

    @property
    def singular(self) -> str:
        return self.kind.lower()

    @property
    def api_version(self) -> str:
        """`v1` or `group/version`, as in the object's `apiVersion`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """`plural.group` (only `plural` for the core group), as in error messages of the API server."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def root_path(self) -> str:
        """`/api/v1` or `/apis/group/version`."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the URL path of the collection, the object or its subresource."""
        parts = [self.root_path]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/".join(parts)


_ACRONYMS = {
    word.lower(): word
    for word in re.findall(
        r"\w+", "API BE BPS CIDR CPU CPUs ID IOPS IP IPC IPs NUMA PID QOS QPS TTL URI UUID"
    )
}


def wire_name(field: str) -> str:
    """Return the member that a field stands for: camel case, with acronyms after the first word in capitals."""
    first, *others = field.rstrip("_").split("_")
    return first + "".join(_ACRONYMS.get(word, word.capitalize()) for word in others)


class ViewPart(msgspec.Struct, frozen=True, kw_only=True, rename=wire_name, omit_defaults=True, gc=False):
    """Base of the pieces of typed views.

    `gc=False`: a decoded tree has no cycles, so the collector need not look at it (a large cache of objects
    would otherwise make every full collection slow).
    """


class OwnerReference(ViewPart, frozen=True, kw_only=True):
    """The owner of an object (same namespace, or cluster-scoped)."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(ViewPart, frozen=True, kw_only=True):
    """`metadata` of every object; times stay RFC 3339 text (`clock.parse_rfc3339`)."""

    name: str = ""
    namespace: str = ""
    generate_name: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[OwnerReference] = []
    finalizers: list[str] = []


_EMPTY = ObjectMeta()


def identity_of(meta: ObjectMeta, **kept: Any) -> ObjectMeta:
    """Return the metadata that caches of many objects keep: identity, version, and the fields that are given. All
    copies share what is empty."""
    return msgspec.structs.replace(
        _EMPTY,
        name=meta.name,
        namespace=sys.intern(meta.namespace),
        uid=meta.uid,
        resource_version=meta.resource_version,
        **kept,
    )


class Object(ViewPart, frozen=True, kw_only=True):
    """Base of all typed views; a subclass sets `resource`."""

    resource: ClassVar[Resource]

    metadata: ObjectMeta = ObjectMeta()

    @property
    def key(self) -> str:
        """`namespace/name`, or `name` for cluster-scoped objects."""
        meta = self.metadata
        return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name


def controller_of(obj: Object) -> OwnerReference | None:
    """Return the owner that controls an object, and makes its successors."""
    for owner in obj.metadata.owner_references:
        if owner.controller:
            return owner
    return None


def is_controlled_by(obj: Object, owner: Object) -> bool:
    """Return whether `owner` controls an object."""
    found = controller_of(obj)
    return found is not None and found.uid == owner.metadata.uid


def controller_reference(owner: Object) -> OwnerReference:
    """Return the reference by which `owner` controls an object, and waits for its deletion."""
    return OwnerReference(
        api_version=owner.resource.api_version,
        kind=owner.resource.kind,
        name=owner.metadata.name,
        uid=owner.metadata.uid,
        controller=True,
        block_owner_deletion=True,
    )


def named(obj: Object) -> str:
    """Return an object's kind and key for people: `Pod default/web`."""
    return f"{obj.resource.kind} {obj.key}"


def to_wire(obj: Object) -> dict[str, Any]:
    """Return the JSON object of a view built by us, with `apiVersion` and `kind`; for creates only."""
    body: dict[str, Any] = {"apiVersion": obj.resource.api_version, "kind": obj.resource.kind}
    body.update(msgspec.to_builtins(obj))
    return body


def metadata_view(resource: Resource) -> type[Object]:
    """Return a view of any resource that holds its metadata only (garbage collection, namespace clean-up)."""
    return type(
        f"{resource.kind}Metadata", (Object,), {"resource": resource, "__annotations__": {}}, frozen=True
    )


class ObjectReference(ViewPart, frozen=True, kw_only=True):
    """A reference to any object."""

    api_version: Annotated[str, "API version of the object."] = ""
    kind: Annotated[str, "Kind of the object."] = ""
    namespace: Annotated[str, "Namespace of the object; empty when it is cluster-scoped."] = ""
    name: Annotated[str, "Name of the object."] = ""
    uid: Annotated[str, "UID of the object: a successor of the same name is not meant."] = ""
    resource_version: Annotated[str, "The version of the object that is meant, if one."] = ""
    field_path: Annotated[str, "The part of the object that is meant, such as spec.containers{web}."] = ""


def reference(obj: Object) -> ObjectReference:
    """Return a reference to exactly this version of an object."""
    meta = obj.metadata
    return ObjectReference(
        api_version=obj.resource.api_version,
        kind=obj.resource.kind,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
    )


class LocalObjectReference(ViewPart, frozen=True, kw_only=True):
    """A reference to an object of the same namespace."""

    name: str = ""


class Condition(ViewPart, frozen=True, kw_only=True):
    """A condition as built-in kinds have it; `status` is True, False or Unknown."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    last_probe_time: str | None = None
    last_heartbeat_time: str | None = None
    last_update_time: str | None = None
    observed_generation: int = 0


class AnyCondition(Protocol):
    """A condition, whatever else the kind writes into it."""

    @property
    def type(self) -> str: ...

    @property
    def status(self) -> str: ...


C = TypeVar("C", bound=AnyCondition)


def find_condition(conditions: Iterable[C], kind: str) -> C | None:
    """Return the condition of a type."""
    for condition in conditions:  # a loop, as this is asked of every pod at every change
        if condition.type == kind:
            return condition
    return None


def is_condition_true(conditions: Iterable[AnyCondition], kind: str) -> bool:
    """Return whether the condition of a type is there and True."""
    found = find_condition(conditions, kind)
    return found is not None and found.status == "True"


class StandardCondition(ViewPart, frozen=True, kw_only=True):
    """A condition in the form that Kubernetes recommends for custom resources."""

    type: Annotated[
        str,
        REQUIRED,
        limits(
            max_length=316,
            pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
            r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
        ),
        "What the condition is about, in CamelCase or as domain/CamelCase.",
    ] = always("")
    status: Annotated[str, REQUIRED, one_of("True", "False", "Unknown"), "Whether it holds."] = always("")
    reason: Annotated[
        str,
        REQUIRED,
        limits(min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"),
        "Why it last changed, one CamelCase word for programs.",
    ] = always("")
    message: Annotated[str, REQUIRED, limits(max_length=32768), "The same for people; may be empty."] = (
        always("")
    )
    last_transition_time: Annotated[
        str, REQUIRED, DATE_TIME, "When the status last went from one value to another."
    ] = always("")
    observed_generation: Annotated[
        int, at_least(0), "The metadata.generation for which the condition was found."
    ] = 0
