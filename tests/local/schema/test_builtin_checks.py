"""What users get wrong in built-in kinds, in the words of the API server."""

# ruff: noqa: E501 - the tables quote the API server's texts whole, one case a line

from typing import Any

import pytest

from tests.local.schema.builders import (
    CATALOG,
    checked,
    meta,
    pod,
    prepared,
    resource,
    template,
    texts,
    workload,
)

Json = dict[str, Any]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({"containers": []}, "spec.containers: Required value", id="no container"),
        pytest.param({"containers": [{"image": "i"}]}, "spec.containers[0].name: Required value", id="no name"),
        pytest.param({"containers": [{"name": "c"}]}, "spec.containers[0].image: Required value", id="no image"),
        pytest.param({"containers": [{"name": "c", "image": "i"}] * 2}, 'spec.containers[1].name: Duplicate value: "c"', id="twice the same name"),
        pytest.param({"restartPolicy": "Sometimes"}, 'spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "Never", "OnFailure"', id="restart policy"),
        pytest.param({"tolerations": [{"operator": "Equal", "value": "x"}]}, "spec.tolerations[0].operator: Invalid value: \"Equal\": operator must be Exists when `key` is empty, which means \"match all values and all keys\"", id="toleration without key"),
        pytest.param({"tolerations": [{"key": "a", "operator": "Gt", "value": "010"}]}, "spec.tolerations[0].value: Invalid value: \"010\": must be a decimal integer of 64 bits, without a plus sign or leading zeros", id="a number that is compared"),
        pytest.param({"tolerations": [{"key": "a", "operator": "Exists", "tolerationSeconds": 1}]}, "spec.tolerations[0].effect: Invalid value: \"\": effect must be 'NoExecute' when `tolerationSeconds` is set", id="toleration seconds without effect"),
        pytest.param({"nodeSelector": {"a b": "c"}}, "spec.nodeSelector: Invalid value: \"a b\": name part must consist of", id="node selector"),
        pytest.param({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Like"}]}]}}}}, "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].operator: Invalid value: \"Like\": not a valid selector operator", id="affinity operator"),
        pytest.param({"topologySpreadConstraints": [{"maxSkew": 0, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"}]}, "spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero", id="skew"),
        pytest.param({"volumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}]}, "spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type", id="two sources"),
    ],
)  # fmt: skip
def test_pods(spec: Json, expected: str) -> None:
    (found,) = checked("Pod", pod(**spec))

    assert found.startswith(expected)


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        pytest.param({"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}, 'resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1', id="request above limit"),
        pytest.param({"resources": {"requests": {"cpu": "-1"}}}, 'resources.requests[cpu]: Invalid value: "-1": must be greater than or equal to 0', id="negative request"),
        pytest.param({"resources": {"requests": {"example.com/gpu": "1"}}}, "resources.limits: Required value: Limit must be set for non overcommitable resources", id="extended resource without limit"),
        pytest.param({"resources": {"limits": {"example.com/gpu": "500m"}}}, 'resources.limits[example.com/gpu]: Invalid value: "500m": must be an integer', id="half an extended resource"),
        pytest.param({"volumeMounts": [{"name": "v", "mountPath": "/x"}]}, 'volumeMounts[0].name: Not found: "v"', id="unknown volume"),
        pytest.param({"ports": [{"containerPort": 70000}]}, "ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive", id="port"),
        pytest.param({"ports": [{"containerPort": 80, "protocol": "udp"}]}, 'ports[0].protocol: Unsupported value: "udp": supported values: "SCTP", "TCP", "UDP"', id="protocol"),
        pytest.param({"env": [{"name": "1=A"}]}, 'env[0].name: Invalid value: "1=A": a valid environment variable name must consist', id="environment"),
        pytest.param({"livenessProbe": {}}, "livenessProbe: Required value: must specify a handler type", id="probe without handler"),
        pytest.param({"name": "A_b"}, 'name: Invalid value: "A_b": a lowercase RFC 1123 label must consist', id="name"),
    ],
)  # fmt: skip
def test_containers(container: Json, expected: str) -> None:
    found = checked("Pod", pod(container=container))

    assert found[0].startswith(f"spec.containers[0].{expected}")


def test_batch_resources_of_colocation_need_no_more_than_equal_requests_and_limits() -> None:
    amounts = {"kubernetes.io/batch-cpu": "1000", "kubernetes.io/batch-memory": "1Gi"}

    assert checked("Pod", pod(container={"resources": {"requests": amounts, "limits": amounts}})) == []


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"name": "A"}, 'metadata.name: Invalid value: "A": a lowercase RFC 1123 subdomain must consist'),
        ({"name": "a" * 254}, "metadata.name: Invalid value: "),
        ({"labels": {"a": "b c"}}, 'metadata.labels: Invalid value: "b c": a valid label must be'),
        ({"labels": {"a/b/c": "d"}}, 'metadata.labels: Invalid value: "a/b/c": a qualified name must consist'),
        ({"annotations": {"a": "x" * (256 * 1024)}}, "metadata.annotations: Too long: may not be more than 262144 bytes"),
        ({"finalizers": ["x"]}, 'metadata.finalizers[0]: Invalid value: "x": name is neither a standard'),
        ({"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p"}]}, 'metadata.ownerReferences.uid: Invalid value: "": must not be empty'),
    ],
)  # fmt: skip
def test_metadata(more: Json, expected: str) -> None:
    (found,) = checked("Pod", {**pod(), "metadata": meta(**more)})

    assert found.startswith(expected)


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        pytest.param(workload("Deployment", selector={"matchLabels": {"app": "y"}}), ['spec.template.metadata.labels: Invalid value: {"app":"x"}: `selector` does not match template `labels`'], id="selector and labels differ"),
        pytest.param(workload("Deployment", selector={}), ["spec.selector: Invalid value: {}: empty selector is invalid for deployment"], id="empty selector"),
        pytest.param(workload("Deployment", selector=None), ["spec.selector: Required value", 'spec.template.metadata.labels: Invalid value: {"app":"x"}: `selector` does not match template `labels`'], id="no selector"),
        pytest.param(workload("Deployment", replicas=-1), ["spec.replicas: Invalid value: -1: must be greater than or equal to 0"], id="negative replicas"),
        pytest.param(workload("Deployment", {"restartPolicy": "Never"}), ['spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"'], id="restart policy"),
        pytest.param(workload("Deployment", strategy={"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}), ["spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0"], id="rolling update stands still"),
        pytest.param(workload("Deployment", strategy={"type": "Recreate", "rollingUpdate": {}}), ["spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'"], id="recreate with rolling update"),
        pytest.param(workload("Deployment", progressDeadlineSeconds=5, minReadySeconds=5), ["spec.progressDeadlineSeconds: Invalid value: 5: must be greater than minReadySeconds"], id="deadline"),
        pytest.param(workload("Deployment"), [], id="a good deployment"),
        pytest.param(workload("StatefulSet"), [], id="a good stateful set"),
        pytest.param(workload("DaemonSet"), [], id="a good daemon set"),
    ],
)  # fmt: skip
def test_workloads(obj: Json, expected: list[str]) -> None:
    assert checked(obj["kind"], obj) == expected


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("*/5 * * * *", []),
        ("0 3 1-5,10 jan-mar mon", []),
        ("@daily", []),
        ("* * * *", ["expected exactly 5 fields, found 4: [* * * *]"]),
        ("60 * * * *", ["end of range (60) above maximum (59): 60"]),
        ("5-1 * * * *", ["beginning of range (5) beyond end of range (1): 5-1"]),
    ],
)
def test_cron_schedules(schedule: str, expected: list[str]) -> None:
    job = {"template": template(restartPolicy="Never")}
    obj = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": meta(),
        "spec": {"schedule": schedule, "jobTemplate": {"spec": job}},
    }

    assert checked("CronJob", obj) == [
        f'spec.schedule: Invalid value: "{schedule}": {text}' for text in expected
    ]


@pytest.mark.parametrize(
    ("kind", "obj", "expected"),
    [
        ("Service", {"metadata": meta(), "spec": {}}, ["spec.ports: Required value"]),
        ("Service", {"metadata": meta(), "spec": {"ports": [{"port": 1}, {"port": 2}]}}, ["spec.ports[0].name: Required value", "spec.ports[1].name: Required value"]),
        ("PodDisruptionBudget", {"metadata": meta(), "spec": {"minAvailable": "x%"}}, ["spec.minAvailable: Invalid value: \"x%\": a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"]),
        ("PriorityClass", {"metadata": {"name": "x"}, "value": 2_000_000_000}, ["value: Forbidden: maximum allowed value of a user defined priority is 1000000000"]),
        ("PriorityClass", {"metadata": {"name": "system-x"}, "value": 1}, ["metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only"]),
        ("ConfigMap", {"metadata": meta(), "data": {"a b": "c"}}, ["data[a b]: Invalid value: \"a b\": a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"]),
        ("Node", {"metadata": {"name": "n"}, "spec": {"taints": [{"key": "a", "effect": "x"}]}}, ['metadata.taints[0].effect: Unsupported value: "x": supported values: "NoSchedule", "PreferNoSchedule", "NoExecute"']),
        ("Namespace", {"metadata": {"name": "n", "namespace": "x"}}, ["metadata.namespace: Forbidden: not allowed on this type"]),
    ],
)  # fmt: skip
def test_other_kinds(kind: str, obj: Json, expected: list[str]) -> None:
    assert checked(kind, obj) == expected


def updated(kind: str, old: Json, new: Json) -> list[str]:
    return texts(CATALOG.schema_of(resource(kind)).validate(prepared(kind, new), prepared(kind, old)))


def test_a_pod_on_a_node_is_nominated_to_none() -> None:
    placed = pod(nodeName="n1")
    nominated = {**placed, "status": {"nominatedNodeName": "n2"}}

    assert updated("Pod", placed, nominated) == [
        "status.nominatedNodeName: Forbidden: may not be set on pods that are already bound to a node"
    ]
    assert updated("Pod", nominated, placed) == updated("Pod", nominated, nominated) == []


def test_a_pods_spec_is_fixed_but_for_its_image() -> None:
    assert updated("Pod", pod(), pod(container={"image": "i:2"})) == []
    (found,) = updated("Pod", pod(), pod(nodeSelector={"a": "b"}))
    assert found.startswith(
        "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`"
    )
    assert updated("Pod", pod(), pod(tolerations=[{"key": "a", "operator": "Exists"}])) == []
    assert updated("Pod", pod(tolerations=[{"key": "a", "operator": "Exists"}]), pod()) == [
        "spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds"
    ]


def test_a_gated_pod_may_be_steered_and_ungated() -> None:
    gated = pod(schedulingGates=[{"name": "g"}])

    assert updated("Pod", gated, pod(nodeSelector={"a": "b"})) == []
    assert updated("Pod", pod(), gated) == [
        "spec.schedulingGates[0].name: Forbidden: only deletion is allowed, but found new scheduling gate 'g'"
    ]


def test_selectors_are_immutable() -> None:
    new = workload("Deployment", selector={"matchLabels": {"app": "x", "b": "c"}})
    new["spec"]["template"]["metadata"] = {"labels": {"app": "x", "b": "c"}}

    assert updated("Deployment", workload("Deployment"), new) == [
        'spec.selector: Invalid value: {"matchLabels":{"app":"x","b":"c"}}: field is immutable'
    ]


def test_a_jobs_template_is_immutable_until_it_runs() -> None:
    def job(suspend: bool, **pod_spec: Any) -> Json:
        return workload("Job", {"restartPolicy": "Never", **pod_spec}, suspend=suspend, manualSelector=True)

    (found,) = updated("Job", job(False), job(False, nodeSelector={"a": "b"}))
    assert found.startswith("spec.template: Invalid value: ") and found.endswith(": field is immutable")
    assert updated("Job", job(True), job(True, nodeSelector={"a": "b"})) == []


def test_the_policies_of_a_job_are_immutable() -> None:
    def job(**spec: Any) -> Json:
        return workload("Job", {"restartPolicy": "Never"}, manualSelector=True, **spec)

    policy = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "Ready", "status": "True"}]}]}
    [found] = updated("Job", job(podFailurePolicy=policy), job())
    assert found.startswith("spec.podFailurePolicy: ") and found.endswith(": field is immutable")
    [found] = updated("Job", job(managedBy="acme.io/a"), job(managedBy="acme.io/b"))
    assert found == 'spec.managedBy: Invalid value: "acme.io/b": field is immutable'


def test_a_job_keeps_its_selector() -> None:
    old = workload("Job", {"restartPolicy": "Never"}, manualSelector=True)
    spec = {key: value for key, value in old["spec"].items() if key != "selector"}

    assert "spec.selector: Required value" in updated("Job", old, {**old, "spec": spec})


def test_parts_that_an_update_leaves_alone_are_not_checked_again() -> None:
    schema = CATALOG.schema_of(resource("Pod"))
    stored = {**pod(restartPolicy="Sometimes"), "metadata": meta()}
    labelled = {**stored, "metadata": meta(labels={"a": "b"})}

    assert schema.validate(labelled, stored) == []


def test_match_conditions_that_cannot_be_evaluated_are_refused_not_ignored() -> None:
    conditions = [
        {"name": "x", "expression": "object.metadata.name != 'y'"},
        {"name": "x", "expression": "authorizer.group('').resource('pods').check('get').allowed()"},
        {"name": "", "expression": " "},
    ]
    webhook = {
        "name": "a.b.c",
        "clientConfig": {"url": "https://x"},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "matchConditions": conditions,
    }
    obj = {"metadata": {"name": "x"}, "webhooks": [webhook]}

    found = checked("ValidatingWebhookConfiguration", obj)

    (uncompiled,) = [text for text in found if "Invalid value" in text]
    assert uncompiled.startswith("webhooks[0].matchConditions[1].expression: Invalid value: ")
    assert "authorizer is not supported by this API server" in uncompiled
    assert sorted(set(found) - {uncompiled}) == [
        'webhooks[0].matchConditions[1].name: Duplicate value: "x"',
        "webhooks[0].matchConditions[2].expression: Required value",
        "webhooks[0].matchConditions[2].name: Required value",
    ]


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        ({"url": "http://x"}, "webhooks[0].clientConfig.url: Invalid value: \"http://x\": 'https' is the only allowed URL scheme; desired format: https://host[/path]"),
        ({}, "webhooks[0].clientConfig: Required value: exactly one of url or service is required"),
    ],
)  # fmt: skip
def test_webhook_addresses(client: Json, expected: str) -> None:
    webhook = {
        "name": "a.b.c",
        "clientConfig": client,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
    }

    assert checked("ValidatingWebhookConfiguration", {"metadata": {"name": "x"}, "webhooks": [webhook]}) == [
        expected
    ]
