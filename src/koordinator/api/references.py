"""References from one object to another."""

from typing import Annotated

from koordinator.api.meta import ViewPart


class ObjectReference(ViewPart, frozen=True, kw_only=True):
    """A reference to any object."""

    api_version: Annotated[str, "API version of the object."] = ""
    kind: Annotated[str, "Kind of the object."] = ""
    namespace: Annotated[str, "Namespace of the object; empty when it is cluster-scoped."] = ""
    name: Annotated[str, "Name of the object."] = ""
    uid: Annotated[str, "UID of the object: a successor of the same name is not meant."] = ""
    resource_version: Annotated[str, "The version of the object that is meant, if one."] = ""
    field_path: Annotated[str, "The part of the object that is meant, such as spec.containers{web}."] = ""


class LocalObjectReference(ViewPart, frozen=True, kw_only=True):
    """A reference to an object of the same namespace."""

    name: str = ""
