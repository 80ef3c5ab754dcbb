"""The annotation that tells the node agent about Batch amounts."""

from typing import Any

import msgspec
import pytest

from koordinator.api import labels
from koordinator.api.errors import ProtocolError
from koordinator.manager.profiles import extended_resources

AMOUNTS = {"kubernetes.io/batch-cpu": "1000", "kubernetes.io/batch-memory": "1Gi"}


def pod(annotation: str | None = None, **spec: Any) -> dict[str, Any]:
    annotations = {} if annotation is None else {labels.EXTENDED_RESOURCE_SPEC: annotation}
    return {"metadata": {"annotations": annotations}, "spec": spec}


def reported(body: dict[str, Any]) -> Any:
    text = extended_resources.annotate_pod(body)["metadata"]["annotations"][labels.EXTENDED_RESOURCE_SPEC]
    return msgspec.json.decode(text)


def test_sidecars_are_reported_and_init_containers_that_end_are_not() -> None:
    needs = {"resources": {"requests": AMOUNTS}}
    sidecar = {"name": "side", "restartPolicy": "Always", **needs}

    found = reported(
        pod(containers=[{"name": "main", **needs}], initContainers=[{"name": "first", **needs}, sidecar])
    )

    assert found == {"containers": {"main": {"requests": AMOUNTS}, "side": {"requests": AMOUNTS}}}


def test_a_pod_whose_annotation_says_so_already_is_the_same_object() -> None:
    text = msgspec.json.encode({"containers": {"main": {"requests": AMOUNTS}}}).decode()
    body = pod(text, containers=[{"name": "main", "resources": {"requests": AMOUNTS}}])

    assert extended_resources.annotate_pod(body) is body
    assert extended_resources.annotate_pod(pod(containers=[{"name": "main"}])) == pod(
        containers=[{"name": "main"}]
    )


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[]", "5", '{"containers": ["main"]}', ""),
        '{"containers": {"main": {"limits": {"kubernetes.io/batch-cpu": "much"}}}}',
    ],
)
def test_an_annotation_that_is_none_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(ProtocolError, match=f"^{labels.EXTENDED_RESOURCE_SPEC}: "):
        extended_resources.annotate_pod(pod(text, containers=[]))
