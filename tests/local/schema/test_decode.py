"""Decoding of built-in kinds: Go's words, unknown fields, quantities."""

# ruff: noqa: E501 - the tables quote the API server's texts whole, one case a line

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koordinator.cluster.errors import ApiError, BadRequest
from tests.local.schema.builders import CATALOG, pod, resource, workload

POD = CATALOG.schema_of(resource("Pod"))
DEPLOYMENT = CATALOG.schema_of(resource("Deployment"))
PREFIX = "cannot be handled as a {}: "


@pytest.mark.parametrize(
    ("obj", "text"),
    [
        pytest.param(workload("Deployment", replicas="x"), "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32", id="text for a number"),
        pytest.param(workload("Deployment", replicas=1.5), "json: cannot unmarshal number 1.5 into Go struct field DeploymentSpec.spec.replicas of type int32", id="fraction for a number"),
        pytest.param(workload("Deployment", replicas=1 << 40), "json: cannot unmarshal number 1099511627776 into Go struct field DeploymentSpec.spec.replicas of type int32", id="a number that is too large"),
        pytest.param(workload("Deployment", replicas=True), "json: cannot unmarshal bool into Go struct field DeploymentSpec.spec.replicas of type int32", id="bool for a number"),
        pytest.param(workload("Deployment", template="x"), "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.template of type v1.PodTemplateSpec", id="text for an object"),
        pytest.param(workload("Deployment", {"containers": {}}), "json: cannot unmarshal object into Go struct field PodSpec.spec.template.spec.containers of type []v1.Container", id="object for a list"),
        pytest.param(workload("Deployment", {"containers": [{"image": 1}]}), "json: cannot unmarshal number into Go struct field Container.spec.template.spec.containers.image of type string", id="number for a text"),
        pytest.param({**workload("Deployment"), "metadata": {"labels": {"a": 1}}}, "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string", id="number as a label"),
        pytest.param({**workload("Deployment"), "metadata": []}, "json: cannot unmarshal array into Go struct field Deployment.metadata of type v1.ObjectMeta", id="a list as metadata"),
    ],
)  # fmt: skip
def test_wrong_types_are_refused_in_gos_words(obj: Any, text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        DEPLOYMENT.decode(obj, "")

    assert caught.value.message == f'Deployment in version "v1" cannot be handled as a Deployment: {text}'


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        ("x", "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"),
        ("1Zi", "quantities must match the regular expression"),
        ("1mk", "unable to parse quantity's suffix"),
        (True, "quantities must match the regular expression"),
        ([], "quantities must match the regular expression"),
    ],
)
def test_a_bad_quantity_is_refused(amount: Any, text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        POD.decode(pod(container={"resources": {"limits": {"cpu": amount}}}), "")

    assert text in caught.value.message


@pytest.mark.parametrize(
    ("amount", "canonical"), [(1, "1"), ("1000m", "1"), (0.5, "500m"), ("1024Mi", "1Gi"), ("1e3", "1e3")]
)
def test_quantities_become_canonical(amount: Any, canonical: str) -> None:
    decoded, _ = POD.decode(pod(container={"resources": {"limits": {"x": amount}}}), "")

    assert decoded["spec"]["containers"][0]["resources"]["limits"]["x"] == canonical


def test_unknown_fields_are_errors_when_strict_warnings_by_default_and_silent_when_ignored() -> None:
    obj = pod(container={"imagee": "x"}, foo=1)

    with pytest.raises(BadRequest) as caught:
        POD.decode(obj, "Strict")
    decoded, warnings = POD.decode(obj, "")

    assert caught.value.message == (
        'Pod in version "v1" cannot be handled as a Pod: strict decoding error: '
        'unknown field "spec.containers[0].imagee", unknown field "spec.foo"'
    )
    assert warnings == ['unknown field "spec.containers[0].imagee"', 'unknown field "spec.foo"']
    assert decoded == POD.decode(obj, "Ignore")[0] == pod()
    assert POD.decode(obj, "Ignore")[1] == []


def test_nulls_are_dropped_and_a_clean_object_comes_back_as_it_is() -> None:
    assert POD.decode(pod(nodeName=None), "Strict")[0] == pod()
    clean = pod(container={"resources": {"limits": {"cpu": "1"}}})
    assert POD.decode(clean, "Strict")[0] is clean


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("creationTimestamp", "yesterday", 'parsing time "yesterday" as "2006-01-02T15:04:05Z07:00"'),
        ("creationTimestamp", 1, "json: cannot unmarshal number into Go value of type string"),
    ],
)
def test_times_are_checked(field: str, value: Any, text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        POD.decode({**pod(), "metadata": {field: value}}, "")

    assert text in caught.value.message


def test_what_go_always_writes_keeps_its_zero_whatever_later_documents_call_optional() -> None:
    budget = {"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0}
    kinds: dict[str, dict[str, Any]] = {
        "PodDisruptionBudget": {"status": budget},
        "PriorityClass": {"value": 0},
        "StatefulSet": {"spec": {"ordinals": {"start": 0}}, "status": {"availableReplicas": 0}},
    }
    for kind, fields in kinds.items():
        body = {"apiVersion": resource(kind).api_version, "kind": kind, "metadata": {"name": "a"}, **fields}
        decoded, _ = CATALOG.schema_of(resource(kind)).decode(deepcopy(body), "")
        assert {name: decoded[name] for name in fields} == fields


def test_secrets_hold_base64() -> None:
    schema = CATALOG.schema_of(resource("Secret"))
    with pytest.raises(BadRequest, match="illegal base64 data at input byte 1"):
        schema.decode({"data": {"a": "x!"}}, "")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False)
    | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "metadata",
                    "spec",
                    "status",
                    "containers",
                    "name",
                    "labels",
                    "resources",
                    "limits",
                    "cpu",
                    "image",
                    "template",
                    "selector",
                    "matchLabels",
                    "matchExpressions",
                    "operator",
                    "values",
                    "key",
                    "affinity",
                    "nodeAffinity",
                    "podAffinity",
                    "tolerations",
                    "volumes",
                    "emptyDir",
                    "env",
                    "ports",
                    "replicas",
                    "requiredDuringSchedulingIgnoredDuringExecution",
                    "webhooks",
                    "rules",
                    "clientConfig",
                    "url",
                    "versions",
                    "schema",
                    "openAPIV3Schema",
                    "properties",
                    "items",
                    "type",
                    "names",
                    "taints",
                    "data",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)
KINDS = [
    "Pod",
    "Deployment",
    "Service",
    "Job",
    "CronJob",
    "Node",
    "PodDisruptionBudget",
    "ConfigMap",
    "StatefulSet",
]
KINDS += [
    "MutatingWebhookConfiguration",
    "CustomResourceDefinition",
    "PersistentVolume",
    "DaemonSet",
    "PriorityClass",
]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    kind=st.sampled_from(KINDS),
    body=st.dictionaries(st.sampled_from(["metadata", "spec", "status", "webhooks", "data", "value"]), JSON),
)
def test_no_json_makes_decoding_defaults_or_checks_fail_otherwise_than_by_an_api_error(
    kind: str, body: Any
) -> None:
    schema = CATALOG.schema_of(resource(kind))
    before = deepcopy(body)

    try:
        decoded, _ = schema.decode(body, "")
        ready = schema.default(decoded)
        schema.validate(ready, None)
        schema.validate(ready, decoded)
        if kind == "CustomResourceDefinition":
            CATALOG.check_crd(ready)
    except ApiError as error:
        assert error.code == 400

    assert body == before
