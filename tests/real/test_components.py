"""Manager and scheduler under their roles, beside the real controller manager."""

import json

from tests.e2e.cluster import until
from tests.real.cluster import RealCluster


def test_a_deployment_gets_its_pods_bound_and_running(real: RealCluster) -> None:
    real.kubectl()
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 5,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {
                    "schedulerName": "koord-scheduler",
                    "containers": [{"name": "main", "image": "web"}],
                },
            },
        },
    }
    real.kubectl("apply", "-f", "-", text=json.dumps(deployment))

    real.kubectl("rollout", "status", "deployment/web", "--timeout=60s")

    pods = real.get("pods", "-l", "app=web")["items"]
    assert {pod["status"]["phase"] for pod in pods} == {"Running"}
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 2


def test_nothing_is_forbidden_to_components(real: RealCluster) -> None:
    until(lambda: real.get("nodemetrics")["items"], 30, real.process)

    assert real.refusals() == []
