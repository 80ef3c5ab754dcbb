"""Kinds that the API server serves and no model class describes: the metrics of pods and nodes."""

from koordinator.local.schema import types
from koordinator.local.schema.builtin import models
from koordinator.local.schema.types import Fields, SchemaField, SchemaType, WireKind

_USAGE = SchemaType(WireKind.MAP, element=types.QUANTITY)


def _object(name: str, **fields: SchemaType) -> SchemaType:
    def load() -> Fields:
        common = {
            "apiVersion": types.STRING,
            "kind": types.STRING,
            "metadata": models.struct_of("V1ObjectMeta"),
            "timestamp": types.TIME,
            "window": types.STRING,
        }
        return {key: SchemaField(name=key, type=shape) for key, shape in (common | fields).items()}

    return SchemaType(WireKind.STRUCT, name=name, load=load)


def _container() -> Fields:
    return {
        "name": SchemaField(name="name", type=types.STRING),
        "usage": SchemaField(name="usage", type=_USAGE),
    }


_CONTAINERS = SchemaType(
    WireKind.LIST, element=SchemaType(WireKind.STRUCT, name="V1beta1ContainerMetrics", load=_container)
)

OPEN_KINDS: dict[tuple[str, str, str], SchemaType] = {
    ("metrics.k8s.io", "v1beta1", "NodeMetrics"): _object("V1beta1NodeMetrics", usage=_USAGE),
    ("metrics.k8s.io", "v1beta1", "PodMetrics"): _object("V1beta1PodMetrics", containers=_CONTAINERS),
}
"""(group, version, kind) → type."""

__all__ = ["OPEN_KINDS"]
