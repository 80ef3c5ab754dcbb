"""Nodes with NodeManagers whose containers nobody sees, or whose use counts as somebody else's."""

from typing import Any

from koordinator.api.core import ConfigMap, Pod
from tests.doctor.builders import NAMESPACE, decoded, findings, healthy, snapshot

APPLICATION = (
    '{"applications":[{"name":"yarn-task","priority":"koord-batch","qos":"BE",'
    '"cgroupPath":{"base":"KubepodsBesteffort","relativePath":"hadoop-yarn/"}}]}'
)
NODE_ID = {"yarn.hadoop.apache.org/node-id": "node-0:8041"}


def pod(name: str, labels: dict[str, str], annotations: dict[str, str] | None = None) -> Pod:
    body = {
        "metadata": {"labels": labels, "annotations": annotations or {}},
        "spec": {"nodeName": "node-0"},
        "status": {"phase": "Running"},
    }
    return decoded(Pod, body, name=name, namespace="hadoop")


def manager(annotations: dict[str, str] | None = None) -> Pod:
    return pod("nm", {"app.kubernetes.io/component": "node-manager"}, annotations)


def problems(*pods: Pod, applications: str = APPLICATION) -> list[str]:
    objects: dict[Any, Any] = healthy()
    objects[Pod] = [*objects[Pod], *pods]
    [config] = [each for each in objects[ConfigMap] if each.metadata.name == "slo-controller-config"]
    body = {"data": {**config.data, "host-application-config": applications}}
    objects[ConfigMap] = [decoded(ConfigMap, body, name="slo-controller-config", namespace=NAMESPACE)]
    return [each.problem for each in findings("yarn", snapshot(objects))]


def test_a_cluster_without_yarn_or_with_all_of_it_is_no_trouble() -> None:
    agent = pod("copilot", {"koord-app": "koord-yarn-copilot"})
    assert problems(applications="{}") == []
    assert problems(manager(NODE_ID), agent) == []


def test_what_a_node_manager_lacks_is_told() -> None:
    assert sorted(problems(manager(), applications="{}")) == [
        "a NodeManager runs there, and no koord-yarn-copilot",
        "host-application-config names no application of QoS BE",
        "no annotation yarn.hadoop.apache.org/node-id",
    ]
