"""ValidatingAdmissionPolicies as kube-apiserver 1.35 carries them out; causes and texts are its own."""

from typing import Any

import pytest

from koordinator.clock import FixedClock
from koordinator.cluster import errors
from koordinator.cluster.backend import WriteOptions
from koordinator.local import registry
from koordinator.local.registry import ObjectRegistry

Json = dict[str, Any]

GROUP = "admissionregistration.k8s.io"
CONFIG_MAPS = {
    "resourceRules": [
        {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
    ]
}


@pytest.fixture
async def api() -> ObjectRegistry:
    backend = registry.in_memory(FixedClock())
    namespace = {"metadata": {"name": "vap", "labels": {"tier": "gold"}}}
    await backend.create(backend.resolve("", "v1", "namespaces"), "", namespace)
    return backend


async def bind(api: ObjectRegistry, spec: Json, binding: Json | None = None, name: str = "p") -> None:
    """A policy about ConfigMaps, and a binding of the same name."""
    policies = api.resolve(GROUP, "v1", "validatingadmissionpolicies")
    bindings = api.resolve(GROUP, "v1", "validatingadmissionpolicybindings")
    whole = {"matchConstraints": CONFIG_MAPS, **spec}
    await api.create(policies, "", {"metadata": {"name": name}, "spec": whole})
    bound = {"policyName": name, "validationActions": ["Deny"], **(binding or {})}
    await api.create(bindings, "", {"metadata": {"name": name}, "spec": bound})


async def config(api: ObjectRegistry, name: str = "c", **more: Any) -> list[str]:
    """Create a ConfigMap whose `a` is 1; the warnings."""
    warnings: list[str] = []
    body = {"metadata": {"name": name, **more.pop("meta", {})}, "data": {"a": "1", **more}}
    options = WriteOptions(warn=warnings.append)
    await api.create(api.resolve("", "v1", "configmaps"), "vap", body, options)
    return warnings


def only(expression: str, **more: Any) -> Json:
    return {"validations": [{"expression": expression, **more}]}


HEAD = "configmaps \"c\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'p' denied request: "


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (only("object.data.a == '2'"), "failed expression: object.data.a == '2'"),
        (only("object.data.a == '2'", message="a must be 2"), "a must be 2"),
        (only("object.data.a == '2'", messageExpression="'a was ' + object.data.a"), "a was 1"),
        (only("object.data.a == '2'", messageExpression="string(object.data.b)", message="plain"), "plain"),
        (
            only("object.data.b == '2'"),
            "expression 'object.data.b == '2'' resulted in error: no such key: b",
        ),
        (
            {
                "variables": [
                    {"name": "x", "expression": "object.data.a + 'y'"},
                    {"name": "z", "expression": "variables.x + 'z'"},
                ],
                **only("variables.z == '2'", messageExpression="'it is ' + variables.z"),
            },
            "it is 1yz",
        ),
        (
            only("namespaceObject.metadata.labels.tier == 'silver'"),
            "failed expression: namespaceObject.metadata.labels.tier == 'silver'",
        ),
        (
            {
                "matchConditions": [{"name": "m", "expression": "object.data.zz == '9'"}],
                **only("false"),
            },
            "expression 'object.data.zz == '9'' resulted in error: no such key: zz",
        ),
        (
            {
                "matchConditions": [{"name": "m", "expression": "namespaceObject.metadata.name == 'vap'"}],
                **only("true"),
            },
            "expression 'namespaceObject.metadata.name == 'vap'' resulted in error: no such key: metadata",
        ),
        (
            only("[1, 2, 3].all(x, x < 3)"),
            "failed expression: [1, 2, 3].all(x, x < 3)",
        ),
        (
            {"variables": [{"name": "x", "expression": "object.data.zz"}], **only("variables.x == '1'")},
            "expression 'variables.x == '1'' resulted in error: composited variable \"x\" fails to evaluate: no such "
            "key: zz",
        ),
        (
            {"auditAnnotations": [{"key": "k", "valueExpression": "'v' + object.data.zz"}], **only("true")},
            "expression ''v' + object.data.zz' resulted in error: no such key: zz",
        ),
    ],
)
async def test_what_a_policy_does_not_allow_is_refused_in_the_words_of_kubernetes(
    api: ObjectRegistry, spec: Json, why: str
) -> None:
    await bind(api, spec)

    with pytest.raises(errors.Invalid) as refusal:
        await config(api)

    assert refusal.value.message == HEAD + why
    assert refusal.value.details is not None
    assert [cause.message for cause in refusal.value.details.causes] == [
        HEAD.partition("forbidden: ")[2] + why
    ]


@pytest.mark.parametrize(
    "spec",
    [
        only("object.data.a == '1'"),
        {"failurePolicy": "Ignore", **only("object.data.b == '2'")},
        {
            "matchConditions": [{"name": "m", "expression": "object.data.a == '9'"}],
            **only("false"),
        },
        only(
            "oldObject == null && request.operation == 'CREATE' && request.namespace == 'vap' && "
            "request.resource.resource == 'configmaps'"
        ),
        {
            "matchConstraints": {
                **CONFIG_MAPS,
                "excludeResourceRules": [{**CONFIG_MAPS["resourceRules"][0], "resourceNames": ["c"]}],
            },
            **only("false"),
        },
        {
            "matchConstraints": {**CONFIG_MAPS, "objectSelector": {"matchLabels": {"x": "y"}}},
            **only("false"),
        },
        {
            "matchConstraints": {
                "resourceRules": [{**CONFIG_MAPS["resourceRules"][0], "operations": ["DELETE"]}]
            },
            **only("false"),
        },
        {"auditAnnotations": [{"key": "k", "valueExpression": "'x'"}]},
    ],
)
async def test_other_writes_pass(api: ObjectRegistry, spec: Json) -> None:
    await bind(api, spec)

    assert await config(api) == []


@pytest.mark.parametrize(
    ("reason", "kind"),
    [("Forbidden", errors.Forbidden), ("RequestEntityTooLarge", errors.RequestTooLarge)],
)
async def test_the_reason_gives_the_code(
    api: ObjectRegistry, reason: str, kind: type[errors.ApiError]
) -> None:
    await bind(api, only("false", reason=reason))

    with pytest.raises(kind):
        await config(api)


async def test_a_binding_counts_where_its_selectors_say_and_as_its_actions_say(api: ObjectRegistry) -> None:
    elsewhere = {"namespaceSelector": {"matchLabels": {"tier": "silver"}}}
    await bind(api, only("false"), {"matchResources": elsewhere}, "elsewhere")
    await bind(api, only("object.data.a == '2'", message="careful"), {"validationActions": ["Warn", "Audit"]})

    assert await config(api) == [
        "Validation failed for ValidatingAdmissionPolicy 'p' with binding 'p': careful"
    ]


PARAM_KIND = {"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}}
WANTED = only("object.data.a == params.data.want", messageExpression="'want ' + params.data.want")


@pytest.mark.parametrize(
    ("ref", "why"),
    [
        ({"name": "good", "namespace": "vap"}, None),
        ({"name": "bad"}, "want 7"),
        ({"selector": {"matchLabels": {"all": "of-them"}}}, "want 7"),
        ({"selector": {"matchLabels": {"all": "none"}}, "parameterNotFoundAction": "Allow"}, None),
        (
            {"name": "missing"},
            "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction",
        ),
    ],
)
async def test_parameters_come_from_the_objects_that_the_binding_names(
    api: ObjectRegistry, ref: Json, why: str | None
) -> None:
    await config(api, "good", want="1", meta={"labels": {"all": "of-them"}})
    await config(api, "bad", want="7", meta={"labels": {"all": "of-them"}})
    await bind(api, {**PARAM_KIND, **WANTED}, {"paramRef": {"parameterNotFoundAction": "Deny", **ref}})

    if why is None:
        await config(api)
        return
    with pytest.raises(errors.Invalid) as refusal:
        await config(api)
    assert refusal.value.message == HEAD + why


async def test_a_policy_counts_from_its_writing_to_its_deletion(api: ObjectRegistry) -> None:
    await bind(api, only("object.data.a == '2'"))
    with pytest.raises(errors.Invalid):
        await config(api)

    await api.delete(api.resolve(GROUP, "v1", "validatingadmissionpolicies"), "", "p")
    await config(api)


async def test_a_policy_cannot_lock_out_whoever_mends_it(api: ObjectRegistry) -> None:
    everything = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]}
    await bind(api, {"matchConstraints": {"resourceRules": [everything]}, **only("false")})

    await api.delete(api.resolve(GROUP, "v1", "validatingadmissionpolicybindings"), "", "p")
    await config(api)


POLICY = 'ValidatingAdmissionPolicy.admissionregistration.k8s.io "p" is invalid: '


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (
            only("object.data.a"),
            'spec.validations[0].expression: Invalid value: "object.data.a": must evaluate to bool but got dyn',
        ),
        (
            only("foo == 1"),
            'spec.validations[0].expression: Invalid value: "foo == 1": compilation failed: ERROR: <input>:1:1: '
            "undeclared reference to 'foo' (in container '')\n | foo == 1\n | ^",
        ),
        (only(""), "spec.validations[0].expression: Required value: expression is not specified"),
        (
            only("request.nothing == 1"),
            'spec.validations[0].expression: Invalid value: "request.nothing == 1": compilation failed: ERROR: '
            "<input>:1:8: undefined field 'nothing'\n | request.nothing == 1\n | .......^",
        ),
        (
            only("namespaceObject.metadata.uid != ''"),
            "spec.validations[0].expression: Invalid value: \"namespaceObject.metadata.uid != ''\": compilation "
            "failed: ERROR: <input>:1:25: undefined field 'uid'\n | namespaceObject.metadata.uid != ''\n | "
            "........................^",
        ),
        (
            only("true", message=" "),
            'spec.validations[0].message: Invalid value: " ": must be non-empty if specified',
        ),
        (
            only("true &&\n true"),
            "spec.validations[0].message: Required value: message must be specified if expression contains line breaks",
        ),
        (
            {"auditAnnotations": [{"key": "k", "valueExpression": "1"}]},
            'spec.auditAnnotations[0].valueExpression: Invalid value: "1": must evaluate to one of [string null_type] '
            "but got int",
        ),
        (
            {"matchConditions": [{"name": "m", "expression": "1"}], **only("true")},
            'spec.matchConditions[0].expression: Invalid value: "1": must evaluate to bool but got int',
        ),
        (
            only("true", messageExpression="1"),
            'spec.validations[0].messageExpression: Invalid value: "1": must evaluate to string but got int',
        ),
        (
            {"variables": [{"name": "x", "expression": "foo"}], **only("true")},
            'spec.variables[0].expression: Invalid value: "foo": compilation failed: ERROR: <input>:1:1: undeclared '
            "reference to 'foo' (in container '')\n | foo\n | ^",
        ),
        (
            only("variables.y == 1"),
            'spec.validations[0].expression: Invalid value: "variables.y == 1": compilation failed: ERROR: '
            "<input>:1:1: undeclared reference to 'variables' (in container '')\n | variables.y == 1\n | ^",
        ),
        (
            only("true", reason="Nope"),
            'spec.validations[0].reason: Unsupported value: "Nope": supported values: "Forbidden", "Invalid", '
            '"RequestEntityTooLarge"',
        ),
        (
            {"validations": []},
            "[spec.validations: Required value: validations or auditAnnotations must contain at least one item, "
            "spec.auditAnnotations: Required value: validations or auditAnnotations must contain at least one item]",
        ),
        (
            only("authorizer.path('/x').check('get').allowed()"),
            "spec.validations[0].expression: Invalid value: \"authorizer.path('/x').check('get').allowed()\": "
            "authorizer is not supported by this API server",
        ),
    ],
)
async def test_policies_that_make_no_sense_are_refused_when_they_are_written(
    api: ObjectRegistry, spec: Json, why: str
) -> None:
    with pytest.raises(errors.Invalid) as refusal:
        await bind(api, spec)

    assert refusal.value.message == POLICY + why


@pytest.mark.parametrize(
    ("actions", "why"),
    [
        ([], "Required value: at least one validation action is required"),
        (
            ["Deny", "Warn"],
            'Invalid value: ["Deny","Warn"]: must not contain both Deny and Warn (repeating the same validation '
            "failure information in the API response and headers serves no purpose)",
        ),
        (["Nope"], 'Unsupported value: "Nope": supported values: "Audit", "Deny", "Warn"'),
    ],
)
async def test_bindings_that_make_no_sense_are_refused(
    api: ObjectRegistry, actions: list[str], why: str
) -> None:
    with pytest.raises(errors.Invalid) as refusal:
        await bind(api, only("true"), {"validationActions": actions})

    assert why in refusal.value.message


async def test_a_policy_that_cannot_be_asked_denies_whatever_its_binding_does(api: ObjectRegistry) -> None:
    ref = {"name": "none", "parameterNotFoundAction": "Deny"}
    params = {"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}, **only("true")}
    await bind(api, params, {"validationActions": ["Warn"], "paramRef": ref})

    with pytest.raises(errors.Invalid, match="no params found for policy binding"):
        await config(api)
