"""Typed view of CustomResourceDefinition, without the schemas (`api.crd` makes those)."""

from typing import ClassVar

from koordinator.api.meta import Condition, Object, Resource, ViewPart


class Names(ViewPart, frozen=True, kw_only=True):
    """The names of a custom resource."""

    plural: str = ""
    singular: str = ""
    kind: str = ""
    list_kind: str = ""
    short_names: list[str] = []
    categories: list[str] = []


class CRDVersion(ViewPart, frozen=True, kw_only=True):
    """A version of a custom resource, without its schema."""

    name: str = ""
    served: bool = False
    storage: bool = False


class CustomResourceDefinitionSpec(ViewPart, frozen=True, kw_only=True):
    group: str = ""
    names: Names = Names()
    scope: str = ""
    versions: list[CRDVersion] = []


class CustomResourceDefinitionStatus(ViewPart, frozen=True, kw_only=True):
    """Conditions are Established, NamesAccepted, NonStructuralSchema, Terminating."""

    conditions: list[Condition] = []
    accepted_names: Names = Names()
    stored_versions: list[str] = []


class CustomResourceDefinition(Object, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        group="apiextensions.k8s.io",
        version="v1",
        kind="CustomResourceDefinition",
        plural="customresourcedefinitions",
        namespaced=False,
        short_names=("crd", "crds"),
        categories=("api-extensions",),
        subresources=("status",),
    )

    spec: CustomResourceDefinitionSpec = CustomResourceDefinitionSpec()
    status: CustomResourceDefinitionStatus = CustomResourceDefinitionStatus()
