"""Manager and scheduler under their roles, beside the real controller manager; webhooks behind their Service."""

import json
from typing import Any

from tests.e2e.cluster import until
from tests.real.cluster import POD_ADDRESS, RealCluster
from tests.real.components import WEBHOOK_PORT

Json = dict[str, Any]

SYSTEM = ("-n", "koordinator-system")
SECRET = "koordinator-webhook-certs"
CONFIGURATION = ("mutatingwebhookconfiguration", "koordinator-mutating-webhook-configuration")
AGAINST_THE_RULES = "koordinator.sh/qosClass=LSR,koordinator.sh/priority-class=koord-batch"


def template(name: str, *command: str) -> Json:
    container = {"name": "main", "image": "web", **({"command": list(command)} if command else {})}
    spec = {"schedulerName": "koord-scheduler", "containers": [container]}
    return {"metadata": {"labels": {"app": name}}, "spec": spec}


def test_a_deployment_gets_its_pods_bound_and_running(real: RealCluster) -> None:
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 5,
            "selector": {"matchLabels": {"app": "web"}},
            "template": template("web"),
        },
    }
    real.kubectl("apply", "-f", "-", text=json.dumps(deployment))

    real.kubectl("rollout", "status", "deployment/web", "--timeout=60s")

    pods = real.get("pods", "-l", "app=web")["items"]
    assert {pod["status"]["phase"] for pod in pods} == {"Running"}
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 2


def test_a_job_completes(real: RealCluster) -> None:
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "nap"},
        "spec": {"completions": 3, "parallelism": 2, "template": template("nap", "sleep", "1")},
    }
    job["spec"]["template"]["spec"]["restartPolicy"] = "Never"
    real.kubectl("apply", "-f", "-", text=json.dumps(job))

    real.kubectl("wait", "--for=condition=complete", "job/nap", "--timeout=60s")

    assert real.get("job", "nap")["status"]["succeeded"] == 3


def refusal(cluster: RealCluster) -> str:
    """What the API server says to a pod that no manager would admit; empty when it is let in."""
    words = ("run", "refused", "--image=x", "--labels", AGAINST_THE_RULES, "--dry-run=server")
    return cluster.run(*words).stderr


def test_webhooks_are_called_behind_their_service_by_its_endpoint_slice(real: RealCluster) -> None:
    until(lambda: 'admission webhook "vpod.koordinator.sh" denied' in refusal(real), 30, real.process)

    clients = real.get(*CONFIGURATION)["webhooks"]
    assert {each["clientConfig"]["service"]["name"] for each in clients} == {"koordinator-webhook-service"}


def test_new_certificates_are_served_and_trusted_when_the_secret_is_lost(real: RealCluster) -> None:
    def bundles() -> set[str]:
        return {each["clientConfig"].get("caBundle", "") for each in real.get(*CONFIGURATION)["webhooks"]}

    before = bundles()
    real.servers.network.asked.clear()
    real.kubectl(*SYSTEM, "delete", "secret", SECRET)

    until(lambda: bundles() and not bundles() & {*before, ""}, 60, real.process)
    until(lambda: "denied the request" in refusal(real), 60, real.process)

    assert set(real.servers.network.asked) == {f"{POD_ADDRESS}:{WEBHOOK_PORT}"}
    assert real.run(*SYSTEM, "get", "secret", SECRET).returncode == 0


def test_a_pod_that_waits_is_explained_and_the_scheduler_is_found_by_its_address(real: RealCluster) -> None:
    assert real.scheduler is not None
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "big"}, "spec": template("big")["spec"]}
    body["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "64"}}
    real.kubectl("apply", "-f", "-", text=json.dumps(body))
    real.kubectl("wait", "--for=condition=PodScheduled=False", "pod/big", "--timeout=30s")

    told = real.koordinator("explain", "pod/big", "--scheduler-url", real.scheduler.url)

    assert told.returncode == 3, told.stderr
    assert "Insufficient cpu" in told.stdout
    real.kubectl("delete", "pod", "big")


def test_nothing_is_forbidden_to_components(real: RealCluster) -> None:
    until(lambda: len(real.get("nodemetrics")["items"]) == 2, 30, real.process)
    until(lambda: len(real.get("nodeslos")["items"]) == 2, 30, real.process)

    assert real.refusals() == []
