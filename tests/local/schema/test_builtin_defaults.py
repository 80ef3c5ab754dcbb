"""What the API server fills in."""

# ruff: noqa: E501 - the tables quote the API server's texts whole, one case a line

from copy import deepcopy
from typing import Any

import pytest

from koordinator.api.kinds import BUILT_IN
from tests.local.schema.builders import CATALOG, pod, prepared, workload


def test_a_pod_gets_its_defaults() -> None:
    spec = prepared("Pod", pod())["spec"]

    assert spec == {
        "containers": [
            {
                "name": "c",
                "image": "i:1",
                "resources": {},
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
                "imagePullPolicy": "IfNotPresent",
            }
        ],
        "restartPolicy": "Always",
        "dnsPolicy": "ClusterFirst",
        "terminationGracePeriodSeconds": 30,
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "enableServiceLinks": True,
    }


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("nginx", "Always"),
        ("nginx:latest", "Always"),
        ("nginx:1", "IfNotPresent"),
        ("host:5000/nginx", "Always"),
        ("nginx@sha256:0", "IfNotPresent"),
    ],
)
def test_the_pull_policy_follows_from_the_tag(image: str, policy: str) -> None:
    assert (
        prepared("Pod", pod(container={"image": image}))["spec"]["containers"][0]["imagePullPolicy"] == policy
    )


def test_requests_are_copied_from_limits_where_missing() -> None:
    resources = {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}

    container = prepared("Pod", pod(container={"resources": resources}))["spec"]["containers"][0]

    assert container["resources"]["requests"] == {"cpu": "1", "memory": "1Gi"}


def test_probes_ports_volumes_and_references_get_their_defaults() -> None:
    made = prepared(
        "Pod",
        pod(
            container={
                "livenessProbe": {"httpGet": {"port": 80}},
                "ports": [{"containerPort": 80}],
                "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            },
            volumes=[{"name": "a"}, {"name": "b", "configMap": {"name": "x"}}],
        ),
    )["spec"]

    container = made["containers"][0]
    assert container["livenessProbe"]["periodSeconds"] == 10
    assert container["livenessProbe"]["httpGet"] == {"port": 80, "path": "/", "scheme": "HTTP"}
    assert container["ports"] == [{"containerPort": 80, "protocol": "TCP"}]
    assert container["env"][0]["valueFrom"]["fieldRef"]["apiVersion"] == "v1"
    assert made["volumes"] == [
        {"name": "a", "emptyDir": {}},
        {"name": "b", "configMap": {"name": "x", "defaultMode": 420}},
    ]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (
            "Deployment",
            {
                "replicas": 1,
                "revisionHistoryLimit": 10,
                "progressDeadlineSeconds": 600,
                "strategy": {
                    "type": "RollingUpdate",
                    "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"},
                },
            },
        ),
        ("ReplicaSet", {"replicas": 1}),
        (
            "StatefulSet",
            {"replicas": 1, "podManagementPolicy": "OrderedReady", "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}},
        ),
        ("DaemonSet", {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}}),
        (
            "Job",
            {"completions": 1, "parallelism": 1, "backoffLimit": 6, "completionMode": "NonIndexed", "suspend": False},
        ),
    ],
)  # fmt: skip
def test_workloads_get_their_defaults(kind: str, expected: Any) -> None:
    spec = prepared(kind, workload(kind))["spec"]

    assert {key: spec[key] for key in expected} == expected
    assert spec["template"]["spec"]["restartPolicy"] == "Always"


def test_failures_per_index_leave_failures_of_all_unlimited() -> None:
    body = workload("Job")
    body["spec"] |= {"completionMode": "Indexed", "completions": 3, "backoffLimitPerIndex": 1}

    assert prepared("Job", body)["spec"]["backoffLimit"] == 2**31 - 1


def test_a_condition_of_a_failure_policy_is_true_unless_it_says_so() -> None:
    body = workload("Job")
    rule = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    body["spec"]["podFailurePolicy"] = {"rules": [rule]}

    spec = prepared("Job", body)["spec"]
    [kept] = spec["podFailurePolicy"]["rules"]
    assert kept["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert spec["podReplacementPolicy"] == "Failed"


def test_a_recreating_deployment_gets_no_rolling_update() -> None:
    made = prepared("Deployment", workload("Deployment", strategy={"type": "Recreate"}))

    assert made["spec"]["strategy"] == {"type": "Recreate"}


@pytest.mark.parametrize("kind", [resource.kind for resource in BUILT_IN])
def test_every_served_kind_has_a_schema_and_idempotent_defaults(kind: str) -> None:
    resource = next(found for found in BUILT_IN if found.kind == kind)
    schema = CATALOG.schema_of(resource)
    obj = {"apiVersion": resource.api_version, "kind": kind, "metadata": {"name": "x"}, "spec": {}}
    decoded, _ = schema.decode(obj, "Ignore")
    before = deepcopy(decoded)

    once = schema.default(decoded)

    assert schema.default(once) == once
    assert decoded == before
