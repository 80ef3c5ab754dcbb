"""Random ValidatingAdmissionPolicies with bindings and parameters, each for a namespace of its own."""

# ruff: noqa: E501 - the tables have a case in a line

import re
from typing import Any

from tests.real.custom.definitions import Draw
from tests.real.custom.sides import Answer, Side

Json = dict[str, Any]

GROUP = "/apis/admissionregistration.k8s.io/v1"
EXPRESSIONS = [
    *(
        "object.data.a == 'x'",
        "has(object.data) && 'a' in object.data",
        "object.metadata.name.startsWith('o')",
        "true",
        "false",
    ),
    *(
        "request.operation != 'UPDATE' || oldObject.data == object.data",
        "object == null || object.metadata.?labels.?b.orValue('') != 'no'",
    ),
    *(
        "oldObject == null",
        "variables.size < 3",
        "variables.size + 1 > 0",
        "namespaceObject.metadata.name.size() > 3",
        "request.name != 'o2'",
    ),
    *(
        "request.userInfo.username != ''",
        "has(request.namespace)",
        "object.kind == 'ConfigMap'",
        "object.data.a.size() > int(object.data.b)",
    ),
    *(
        "request.dryRun == false || true",
        "namespaceObject.metadata.labels['case'] != ''",
        "request.resource.resource == 'configmaps'",
    ),
    *(
        "object.data.all(k, object.data[k].matches('^[a-z0-9]*$'))",
        "request.kind.kind == object.kind",
        "size(variables.names) > 0",
    ),
    *(
        "has(object.metadata.uid) || true",
        "oldObject != null || !has(object.metadata.deletionTimestamp)",
        "object.metadata.namespace == request.namespace",
    ),
]
WITH_PARAMS = [
    "params == null || object.data.a == params.data.want",
    "params.data.want == 'x'",
    "params != null",
    "has(params.data.limit)",
]
WITH_PARAMS += ["object.data.size() <= int(params.data.limit)", "params.metadata.name == 'p'"]
WRONG = [
    "object.",
    "1",
    "'a'",
    "request.nothing == 1",
    "variables.nothing",
    "unknown",
    "params.data.x == 'a'",
    "object.data.a + 1 == 'b'",
]
WRONG += [
    "namespaceObject.nothing == 1",
    "[1, 'a'] == object.data",
    "request.operation == 1",
    "request.userInfo.extra.x == 'a'",
    "",
]
MESSAGES = [
    "'no: ' + object.metadata.name",
    "''",
    "'a\\nb'",
    "string(1/0)",
    "'by ' + request.operation",
    "variables.names[0]",
]
VARIABLES = [
    ("size", "object == null ? 0 : object.data.size()"),
    ("names", "object.data.map(k, k)"),
    ("size", "size(object.data)"),
]
REASONS = ["Unauthorized", "Forbidden", "Invalid", "RequestEntityTooLarge"]


def case_of(seed: int) -> Json:
    """A policy, its binding, parameters and writes."""
    draw = Draw("policy", seed)
    has_params = draw.chance(0.4)
    breaks = 0.15 if draw.chance(0.4) else 0.0
    variables = (
        draw.sample(VARIABLES[:2], 2) if draw.chance(0.9) else draw.sample(VARIABLES, draw.randint(0, 2))
    )
    spec: Json = {
        "failurePolicy": draw.choice(["Fail", "Fail", "Ignore"]),
        "matchConstraints": _match(draw, breaks),
        "validations": [
            _validation(draw, has_params, breaks) for _ in range(draw.choice([0, 1, 1, 2, 2, 3]))
        ],
        "variables": [{"name": name, "expression": text} for name, text in variables],
    }
    if draw.chance(0.3):
        names = draw.sample(["first", "second"], draw.choice([1, 1, 2]))
        spec["matchConditions"] = [
            {"name": name, "expression": _expression(draw, has_params, breaks)} for name in names
        ]
    if has_params:
        spec["paramKind"] = {"apiVersion": "v1", "kind": "ConfigMap"}
    if draw.chance(0.15) or (not spec["validations"] and draw.chance(0.7)):
        value = draw.choice(
            ["'a'", "object.data.a", "1", "null", "string(1/0)"]
            if draw.chance(breaks * 2)
            else ["'a'", "object.data.a"]
        )
        spec["auditAnnotations"] = [{"key": "note", "valueExpression": value}]
    binding: Json = {
        "policyName": f"policy-{seed}",
        "validationActions": draw.choice(
            [["Deny"], ["Deny"], ["Deny", "Audit"], ["Warn"], ["Audit"], ["Warn", "Audit"]]
        ),
        "matchResources": {"namespaceSelector": {"matchLabels": {"case": f"c{seed}"}}},
    }
    if has_params and draw.chance(0.9):
        binding["paramRef"] = {
            **draw.choice(
                [{"name": "p"}, {"name": "p"}, {"name": "none"}, {"selector": {"matchLabels": {"p": "x"}}}]
            ),
            "parameterNotFoundAction": draw.choice(["Deny", "Allow"]),
        }
    if draw.chance(breaks):
        binding |= draw.choice(
            [
                {"validationActions": []},
                {"validationActions": ["Deny", "Warn"]},
                {"validationActions": ["No"]},
                {"policyName": ""},
            ]
        )
    return {
        "seed": seed,
        "policy": {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": f"policy-{seed}"}, "spec": spec},
        "binding": {
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": f"binding-{seed}"}, "spec": binding,
        },
        "params": [_map(name, {"want": draw.choice(["x", "y"]), **draw.choice([{}, {"limit": "1"}])}, {"p": "x"}) for name in ("p",)[: draw.choice([0, 1, 1])]],
        "writes": [_write(draw) for _ in range(6)],
    }  # fmt: skip


def _match(draw: Draw, breaks: float) -> Json:
    operations = draw.choice([["*"], ["CREATE", "UPDATE"], ["CREATE"], ["DELETE", "CREATE"], ["UPDATE"]])
    rule: Json = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "resources": ["configmaps"],
        "operations": operations,
    }
    if draw.chance(0.1):
        rule["resourceNames"] = ["o1"]
    made: Json = {"resourceRules": [rule]}
    if draw.chance(0.15):
        made["objectSelector"] = {"matchLabels": {"b": "no"}}
    if draw.chance(0.1):
        made["excludeResourceRules"] = [{**rule, "operations": ["UPDATE"]}]
    if draw.chance(breaks):
        rule |= draw.choice(
            [
                {"operations": []},
                {"operations": ["*", "CREATE"]},
                {"apiGroups": []},
                {"resources": []},
                {"operations": ["GET"]},
            ]
        )
    return made


def _expression(draw: Draw, has_params: bool, breaks: float) -> str:
    if draw.chance(breaks):
        return draw.choice(WRONG)
    return draw.choice(WITH_PARAMS if has_params and draw.chance(0.6) else EXPRESSIONS)


def _validation(draw: Draw, has_params: bool, breaks: float) -> Json:
    made: Json = {"expression": _expression(draw, has_params, breaks)}
    if draw.chance(0.3):
        made["message"] = (
            draw.choice(["wrong", " padded "]) if not draw.chance(breaks) else draw.choice([" ", "a\nb"])
        )
    if draw.chance(0.3):
        made["messageExpression"] = (
            draw.choice(MESSAGES) if not draw.chance(breaks) else draw.choice(["1", " ", "object."])
        )
    if draw.chance(0.3):
        made["reason"] = draw.choice(REASONS) if not draw.chance(breaks) else "Other"
    return made


def _map(name: str, data: Json, labels: Json | None = None) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, **({"labels": labels} if labels else {})},
        "data": data,
    }


def _write(draw: Draw) -> Json:
    """A request; that there is no such object, or one already, is as good an answer as others."""
    name = draw.choice(["o1", "o2"])
    data = {
        key: draw.choice(["x", "y", "1", "B!"]) for key in draw.sample(["a", "b", "c"], draw.randint(1, 3))
    }
    body = _map(name, data, draw.choice([None, {"b": "no"}]))
    verb = draw.choice(["POST", "POST", "PUT", "PATCH", "DELETE"])
    return {"verb": verb, "name": name, "body": body if verb != "PATCH" else {"data": data}}


def prepared(side: Side, cases: list[Json]) -> list[list[Any]]:
    """What is answered to the policy and the binding of each case, whose namespaces are made first."""
    answers: list[list[Any]] = []
    for case in cases:
        namespace = f"c{case['seed']}"
        meta = {"name": namespace, "labels": {"case": namespace}}
        side.ask("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        for param in case["params"]:
            side.ask("POST", f"/api/v1/namespaces/{namespace}/configmaps", param)
        plurals = (
            ("policy", "validatingadmissionpolicies"),
            ("binding", "validatingadmissionpolicybindings"),
        )
        answers.append([told(side.ask("POST", f"{GROUP}/{plural}", case[part])) for part, plural in plurals])
    return answers


def written(side: Side, cases: list[Json]) -> list[list[Any]]:
    """What is answered to the writes of each case."""
    return [[_written(side, case, write) for write in case["writes"]] for case in cases]


def _written(side: Side, case: Json, write: Json) -> Any:
    path = f"/api/v1/namespaces/c{case['seed']}/configmaps"
    is_new = write["verb"] == "POST"
    body = None if write["verb"] == "DELETE" else write["body"]
    return told(side.ask(write["verb"], path if is_new else f"{path}/{write['name']}", body))


def told(answer: Answer) -> Any:
    """Code, warnings and causes. Refused writes of ours carry no warnings; parsers have words of their own."""
    if answer.code < 400:
        return [answer.code, answer.warnings]
    causes = (answer.body.get("details") or {}).get("causes") or ()
    texts = sorted(f"{each.get('field', '')}: {each['message']}" for each in causes)
    return [
        answer.code,
        answer.body["reason"],
        [re.sub(r"Syntax error: .*", "", text, flags=re.DOTALL) for text in texts],
    ]
