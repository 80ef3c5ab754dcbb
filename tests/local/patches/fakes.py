"""A catalog of built-in kinds only, for tests of patches."""

from koordinator.api.meta import Resource
from koordinator.local.patches import ObjectPatcher
from koordinator.local.schema.builtin import models
from koordinator.local.schema.custom.schema import shape_of
from koordinator.local.schema.types import SchemaType

DEPLOYMENTS = Resource(
    group="apps", version="v1", kind="Deployment", plural="deployments", subresources=("status", "scale")
)
PODS = Resource(group="", version="v1", kind="Pod", plural="pods", subresources=("status",))
WIDGETS = Resource(group="example.com", version="v1", kind="Widget", plural="widgets")


class Shapes:
    """`Widget` is a custom resource that takes anything."""

    def type_of(self, resource: Resource, subresource: str = "") -> SchemaType:
        if self.is_custom(resource):
            return shape_of({"type": "object", "x-kubernetes-preserve-unknown-fields": True}, is_root=True)
        return models.struct_of(models.model_of(resource.group, resource.version, resource.kind))

    def is_custom(self, resource: Resource) -> bool:
        return resource.group == "example.com"


PATCHER = ObjectPatcher(Shapes())
