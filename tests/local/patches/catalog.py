"""A catalog for tests of patches: two built-in kinds, and `Widget`, a custom one that takes anything."""

from koordinator.api.meta import Resource
from koordinator.local.patches import ObjectPatcher
from koordinator.local.schema import Catalog

DEPLOYMENTS = Resource(
    group="apps", version="v1", kind="Deployment", plural="deployments", subresources=("status", "scale")
)
PODS = Resource(group="", version="v1", kind="Pod", plural="pods", subresources=("status",))
WIDGETS = Resource(group="example.com", version="v1", kind="Widget", plural="widgets")


CATALOG = Catalog((DEPLOYMENTS, PODS))
CATALOG.add_crd(
    {
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "names": {"kind": "Widget", "plural": "widgets"},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {
                        "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                    },
                }
            ],
        },
    }
)
PATCHER = ObjectPatcher(CATALOG)
