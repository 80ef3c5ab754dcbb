"""A StatefulSet's pods may mount what its claim templates make."""

from typing import Any

from koordinator.api import kinds
from koordinator.api.apps import StatefulSet
from koordinator.local.schema import Catalog

SCHEMA = Catalog(kinds.BUILT_IN).schema_of(StatefulSet.resource)


def stateful_set(mount: str) -> dict[str, Any]:
    container = {"name": "main", "image": "db", "volumeMounts": [{"name": mount, "mountPath": "/data"}]}
    claim = {
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    labels = {"app": "db"}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "db", "namespace": "default"},
        "spec": {
            "serviceName": "db",
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
            "volumeClaimTemplates": [claim],
        },
    }


def problems(mount: str) -> list[str]:
    return [cause.field for cause in SCHEMA.validate(SCHEMA.default(stateful_set(mount)), None)]


def test_a_claim_template_is_a_volume() -> None:
    assert problems("data") == []


def test_a_mount_of_nothing_is_still_refused() -> None:
    assert problems("logs") == ["spec.template.spec.containers[0].volumeMounts[0].name"]
