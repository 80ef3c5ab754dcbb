"""Installing beside the Go project: its objects are seen, and the words say exactly what to do."""

from typing import Any

from koordinator.api.admission import MutatingWebhookConfiguration
from koordinator.api.apps import DaemonSet, Deployment
from koordinator.cluster.kube import KubeCluster
from koordinator.doctor.checks.all import examine
from koordinator.doctor.finding import FindingSeverity
from koordinator.install import predecessor, steps
from koordinator.install.steps import Api, ApplyOutcome, resource_of_body
from koordinator.install.values import Values
from tests.doctor.builders import NAMESPACE, decoded, findings, healthy, snapshot
from tests.install.test_steps import api, cluster, of, outcomes  # noqa: F401

Json = dict[str, Any]


def workload(kind: str, name: str, app: str, **annotations: str) -> Json:
    """A workload as the Go project's chart (or its kustomization, which has other names) brings it."""
    labels = {"koord-app": app}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "go"}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": "koordinator-system",
            "labels": labels,
            "annotations": annotations,
        },
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }


def webhooks(kind: str, name: str, webhook: str) -> Json:
    entry = {
        "name": webhook,
        "clientConfig": {"service": {"name": "koord-webhook-service", "namespace": "koordinator-system"}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "rules": [
            {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["nothings"]}
        ],
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name},
        "webhooks": [entry],
    }


GO = [
    workload("DaemonSet", "koordlet", "koordlet"),
    workload("Deployment", "koord-manager", "koord-manager", **{"meta.helm.sh/release-name": "koordinator"}),
    workload("Deployment", "koord-scheduler", "koord-scheduler"),
    workload("Deployment", "koord-descheduler", "koord-descheduler"),
    webhooks(
        "MutatingWebhookConfiguration", "koord-mutating-webhook-configuration", "mpod-create.koordinator.sh"
    ),
    webhooks(
        "ValidatingWebhookConfiguration", "koord-validating-webhook-configuration", "vpod.koordinator.sh"
    ),
]
"""Objects of both of its ways of installing."""


async def bring(cluster: KubeCluster, bodies: list[Json]) -> None:  # noqa: F811
    for body in bodies:
        namespace = body["metadata"].get("namespace", "")
        await cluster.request("POST", resource_of_body(body).path(namespace), body)


async def test_nothing_is_applied_while_the_go_project_runs_and_each_line_is_a_command(
    api: Api,  # noqa: F811
    cluster: KubeCluster,  # noqa: F811
) -> None:
    await bring(cluster, GO)

    found = await outcomes(steps.apply(api, of()))

    assert {step.outcome for step in found.values()} == {ApplyOutcome.FAILED}
    assert sorted(found) == [
        "DaemonSet koordinator-system/koordlet",
        "Deployment koordinator-system/koord-manager",
        "Deployment koordinator-system/koord-scheduler",
        "MutatingWebhookConfiguration koord-mutating-webhook-configuration",
        "ValidatingWebhookConfiguration koord-validating-webhook-configuration",
    ]
    why = found["DaemonSet koordinator-system/koordlet"].why
    assert "kubectl -n koordinator-system delete daemonset koordlet" in why
    assert "never `helm uninstall koordinator`" in found["Deployment koordinator-system/koord-manager"].why
    assert all("docs/switch-from-go.md" in step.why for step in found.values())

    # One component after the other: whose place ours do not take may stay.
    only_scheduler = of(manager={"enabled": False}, koordlet={"enabled": False})
    found = await outcomes(steps.apply(api, only_scheduler))
    assert sorted(found) == ["Deployment koordinator-system/koord-scheduler"]

    for legacy in predecessor.in_the_way(predecessor.legacy_objects(GO), Values()):
        body = next(one for one in GO if one["metadata"]["name"] == legacy.name)
        await api.delete(resource_of_body(body), legacy.namespace, legacy.name)
    found = await outcomes(steps.apply(api, of()))
    assert {step.name for step in found.values() if step.outcome is ApplyOutcome.FAILED} == set()
    again = await outcomes(steps.apply(api, of()))
    assert ApplyOutcome.FAILED not in {step.outcome for step in again.values()}, (
        "ours are not taken for theirs"
    )


def test_doctor_tells_two_agents_on_a_node_from_a_switch_under_way() -> None:
    objects = healthy()
    objects[DaemonSet].append(decoded(DaemonSet, workload("DaemonSet", "koord-koordlet", "koordlet")))
    objects[MutatingWebhookConfiguration].append(decoded(MutatingWebhookConfiguration, GO[4]))

    agents, config = findings("predecessor", snapshot(objects))

    assert agents.object == f"DaemonSet {NAMESPACE}/koord-koordlet"
    assert agents.remedy[0] == "kubectl -n koordinator-system delete daemonset koord-koordlet"
    assert config.severity is agents.severity is FindingSeverity.ERROR
    assert config.remedy[0].endswith("koord-mutating-webhook-configuration")

    objects = healthy()
    objects[Deployment] = [
        decoded(Deployment, workload("Deployment", "koord-scheduler", "koord-scheduler")),
        *(each for each in objects[Deployment] if each.metadata.name != "koord-scheduler"),
    ]
    (only,) = examine(snapshot(objects), ["predecessor"]).findings
    assert only.severity is FindingSeverity.NOTICE
    assert not examine(snapshot(), ["predecessor"]).findings
