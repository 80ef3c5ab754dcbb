"""A catalog of the built-in kinds, and objects of them."""

from typing import Any

from koordinator.api.kinds import BUILT_IN
from koordinator.api.meta import Resource
from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import Catalog

Json = dict[str, Any]

CATALOG = Catalog(BUILT_IN)


def resource(kind: str) -> Resource:
    return next(found for found in BUILT_IN if found.kind == kind)


def checked(kind: str, obj: Json, old: Json | None = None) -> list[str]:
    """What is wrong with an object, as `field: message`, after decoding and defaults."""
    schema = CATALOG.schema_of(resource(kind))
    return texts(schema.validate(prepared(kind, obj), None if old is None else prepared(kind, old)))


def prepared(kind: str, obj: Json) -> Json:
    schema = CATALOG.schema_of(resource(kind))
    decoded, _ = schema.decode(obj, "Ignore")
    return schema.default(decoded)


def texts(causes: list[StatusCause]) -> list[str]:
    return [f"{cause.field}: {cause.message}" for cause in causes]


def meta(**more: Any) -> Json:
    return {"name": "x", "namespace": "default", **more}


def pod(*, container: Json | None = None, **spec: Any) -> Json:
    containers = [{"name": "c", "image": "i:1", **(container or {})}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta(), "spec": {"containers": containers, **spec}}


def template(**spec: Any) -> Json:
    return {
        "metadata": {"labels": {"app": "x"}},
        "spec": {"containers": [{"name": "c", "image": "i:1"}], **spec},
    }


def workload(kind: str, pod_spec: Json | None = None, **spec: Any) -> Json:
    group = "batch/v1" if "Job" in kind else "apps/v1"
    body: Json = {"selector": {"matchLabels": {"app": "x"}}, "template": template(**(pod_spec or {}))}
    return {"apiVersion": group, "kind": kind, "metadata": meta(), "spec": {**body, **spec}}
