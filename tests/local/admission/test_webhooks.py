"""Admission through webhooks in this process: what is asked, and what answers do."""

# ruff: noqa: E501 - the tables quote the API server's texts whole, one case a line

import asyncio
from copy import deepcopy
from typing import Any

import pytest

from koordinator.api.meta import Resource
from koordinator.cluster.backend import WriteOptions
from koordinator.cluster.errors import ApiError, BadRequest, Forbidden, InternalError, RequestTooLarge
from koordinator.local.admission import WebhookAdmission
from koordinator.local.admission.client import QUESTION_BYTES_MAX
from tests.local.admission.builders import (
    NODES,
    POD,
    PODS,
    Handler,
    Source,
    admission,
    answering,
    attributes,
    configuration,
    label,
    rule,
    webhook,
)

Json = dict[str, Any]


async def create(
    admit: WebhookAdmission, obj: Json | None = None, resource: Resource = PODS, **options: Any
) -> Json:
    sent = POD if obj is None else obj
    before = deepcopy(sent)
    namespace = "default" if resource.namespaced else ""

    result = await admit.admit(attributes("CREATE", resource, namespace, None, WriteOptions(**options)), sent)

    assert sent == before
    assert result is not None
    return result


async def test_a_patch_of_a_mutating_webhook_is_applied() -> None:
    admit = admission(Source([configuration(webhook())]), a=answering(label("new")))

    made = await create(admit)

    assert made["metadata"]["labels"] == {"app": "x", "new": "y"}


async def test_a_webhook_is_asked_in_full() -> None:
    seen: list[Json] = []
    admit = admission(Source(validating=[configuration(webhook())]), a=answering(seen=seen))

    await create(admit, user="jane", groups=("devs",), dry_run=True, field_manager="me")

    (request,) = seen
    assert request["kind"] == {"group": "", "version": "v1", "kind": "Pod"}
    assert request["resource"] == {"group": "", "version": "v1", "resource": "pods"}
    assert request["userInfo"] == {"username": "jane", "groups": ["devs"]}
    assert request["object"] == POD and request["oldObject"] is None
    assert request["operation"] == "CREATE" and request["dryRun"] is True
    assert request["options"] == {
        "kind": "CreateOptions",
        "apiVersion": "meta.k8s.io/v1",
        "dryRun": ["All"],
        "fieldManager": "me",
    }


@pytest.mark.parametrize(
    ("response", "code", "text"),
    [
        ({"status": {"message": "no"}}, 400, 'admission webhook "a.example.com" denied the request: no'),
        ({"status": {"message": "no", "code": 403, "reason": "Forbidden"}}, 403, 'admission webhook "a.example.com" denied the request: no'),
        ({"status": {"code": 200}}, 400, 'admission webhook "a.example.com" denied the request without explanation'),
        ({}, 400, 'admission webhook "a.example.com" denied the request without explanation'),
    ],
)  # fmt: skip
async def test_a_denial_is_passed_on(response: Json, code: int, text: str) -> None:
    admit = admission(Source(validating=[configuration(webhook())]), a=answering(allowed=False, **response))

    with pytest.raises(ApiError) as caught:
        await create(admit)

    assert (caught.value.code, caught.value.message) == (code, text)
    assert caught.value.status()["code"] == code


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
@pytest.mark.parametrize(
    ("handler", "text"),
    [
        pytest.param(answering(uid="other"), 'received invalid webhook response: expected response.uid="', id="wrong uid"),
        pytest.param(answering(version="v2"), "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview", id="wrong version"),
        pytest.param(answering([{"op": "remove", "path": "/nothing"}]), "applying its patch: missing key", id="patch that does not fit"),
        pytest.param(answering([{"op": "replace", "path": "", "value": 1}]), "its patch leaves no object", id="patch of everything"),
        pytest.param(answering(patch=None, patchType="JSONPatch"), "response.patchType but not response.patch", id="type without patch"),
    ],
)  # fmt: skip
async def test_a_bad_answer_is_a_failure_by_policy(handler: Handler, text: str, policy: str) -> None:
    admit = admission(Source([configuration(webhook(failurePolicy=policy))]), a=handler)

    if policy == "Ignore":
        assert await create(admit) == POD
        return
    with pytest.raises(InternalError) as caught:
        await create(admit)
    assert caught.value.message.startswith(
        'Internal error occurred: failed calling webhook "a.example.com": '
    )
    assert text in caught.value.message


async def test_a_handler_that_raises_or_hangs_is_a_failure() -> None:
    async def broken(body: bytes) -> bytes:
        raise RuntimeError("out of order")

    async def hangs(body: bytes) -> bytes:
        await asyncio.sleep(3600)
        return b""

    raising = admission(Source([configuration(webhook())]), a=broken)
    hanging = admission(Source([configuration(webhook(timeoutSeconds=0.01))]), a=hangs)

    with pytest.raises(
        InternalError, match=r"failed to call webhook: .* the handler raised RuntimeError: out of order"
    ):
        await create(raising)
    with pytest.raises(InternalError, match="context deadline exceeded"):
        await create(hanging)


async def test_webhooks_run_by_the_name_of_their_configuration() -> None:
    first = configuration(webhook("b.example.com"), name="1")
    second = configuration(webhook("a.example.com"), name="2")
    admit = admission(Source([second, first]), a=answering(label("l", "a")), b=answering(label("l", "b")))

    assert (await create(admit))["metadata"]["labels"]["l"] == "a"


async def test_a_webhook_is_asked_again_when_a_later_one_changed_the_object() -> None:
    seen: list[Json] = []
    hooks = configuration(webhook("a.example.com", reinvocationPolicy="IfNeeded"), webhook("b.example.com"))
    admit = admission(Source([hooks]), a=answering(label("a"), seen), b=answering(label("b")))

    await create(admit)

    assert [sorted(request["object"]["metadata"]["labels"]) for request in seen] == [
        ["app"],
        ["a", "app", "b"],
    ]


async def test_a_webhook_is_not_asked_again_when_it_does_not_want_it_or_nobody_came_after_it() -> None:
    again, never = webhook("a.example.com", reinvocationPolicy="IfNeeded"), webhook("a.example.com")
    for hooks in ([never, webhook("b.example.com")], [webhook("b.example.com"), again]):
        seen: list[Json] = []
        admit = admission(
            Source([configuration(*hooks)]), a=answering(label("a"), seen), b=answering(label("b"))
        )
        await create(admit)
        assert len(seen) == 1


async def test_validating_webhooks_see_the_mutated_object_and_run_at_the_same_time() -> None:
    running = asyncio.Barrier(2)
    seen: list[Json] = []

    def meeting(handler: Handler) -> Handler:
        async def handle(body: bytes) -> bytes:
            async with asyncio.timeout(5):
                await running.wait()
            return await handler(body)

        return handle

    source = Source(
        [configuration(webhook("m.example.com"))],
        [configuration(webhook("a.example.com"), webhook("b.example.com"))],
    )
    admit = admission(
        source, m=answering(label("m")), a=meeting(answering(seen=seen)), b=meeting(answering())
    )

    await create(admit)

    assert seen[0]["object"]["metadata"]["labels"] == {"app": "x", "m": "y"}


async def test_warnings_are_passed_on_and_cut() -> None:
    warned: list[str] = []
    made = admission(Source(validating=[configuration(webhook())]), a=answering(warnings=["old", "x" * 999]))

    await create(made, warn=warned.append)

    assert warned == ["old", "x" * 256]


async def test_an_object_that_is_too_large_for_a_webhook_is_refused_without_asking_it() -> None:
    seen: list[Json] = []
    admit = admission(Source([configuration(webhook())]), a=answering(seen=seen))

    with pytest.raises(
        RequestTooLarge, match=r'takes \d+ bytes, and webhook "a.example.com" may be sent 7340032'
    ):
        await create(admit, POD | {"status": {"message": "x" * QUESTION_BYTES_MAX}})
    assert not seen


async def test_dry_run_asks_only_webhooks_without_side_effects() -> None:
    admit = admission(Source([configuration(webhook(sideEffects="Some"))]), a=answering())

    with pytest.raises(BadRequest, match=r'admission webhook "a.example.com" does not support dry run'):
        await create(admit, dry_run=True)


@pytest.mark.parametrize(
    ("rules", "operation", "resource", "subresource", "wanted"),
    [
        ({}, "CREATE", PODS, "", True),
        ({"operations": ["UPDATE"]}, "CREATE", PODS, "", False),
        ({"apiGroups": ["apps"]}, "CREATE", PODS, "", False),
        ({"apiVersions": ["v2"]}, "CREATE", PODS, "", False),
        ({"resources": ["pods"]}, "CREATE", PODS, "binding", False),
        ({"resources": ["pods/binding"]}, "CREATE", PODS, "binding", True),
        ({"resources": ["pods/*"]}, "CREATE", PODS, "binding", True),
        ({"resources": ["*"]}, "CREATE", PODS, "binding", False),
        ({"resources": ["*/status"]}, "UPDATE", PODS, "status", True),
        ({"scope": "Cluster"}, "CREATE", PODS, "", False),
        ({"scope": "Cluster"}, "CREATE", NODES, "", True),
        ({"scope": "Namespaced"}, "CREATE", NODES, "", False),
    ],
)
def test_rules(rules: Json, operation: str, resource: Resource, subresource: str, wanted: bool) -> None:
    admit = admission(Source([configuration(webhook(rules=[rule(**rules)]))]))

    assert admit.wants(resource, operation, subresource) is wanted


@pytest.mark.parametrize(
    ("more", "asked"),
    [
        ({"namespaceSelector": {"matchLabels": {"team": "a"}}}, True),
        ({"namespaceSelector": {"matchLabels": {"team": "b"}}}, False),
        ({"objectSelector": {"matchLabels": {"app": "x"}}}, True),
        ({"objectSelector": {"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}}, False),
    ],
)
async def test_selectors(more: Json, asked: bool) -> None:
    seen: list[Json] = []
    admit = admission(Source([configuration(webhook(**more))]), a=answering(seen=seen))

    await create(admit)

    assert bool(seen) is asked


@pytest.mark.parametrize(
    ("expressions", "asked"),
    [
        (["object.metadata.name == 'p'", "request.operation == 'CREATE'"], True),
        (["object.metadata.name == 'p'", "oldObject != null"], False),
        (["!('system:nodes' in request.userInfo.groups)"], True),
        (["object.metadata.annotations['a'] == 'b'", "false"], False),  # what is false decides, errors or not
    ],
)
async def test_match_conditions(expressions: list[str], asked: bool) -> None:
    seen: list[Json] = []
    conditions = [{"name": f"c{number}", "expression": text} for number, text in enumerate(expressions)]
    admit = admission(Source([configuration(webhook(matchConditions=conditions))]), a=answering(seen=seen))

    await create(admit)

    assert bool(seen) is asked


async def test_a_match_condition_that_has_no_value_refuses_or_lets_pass_as_the_policy_says() -> None:
    seen: list[Json] = []
    broken = {"matchConditions": [{"name": "team", "expression": "object.metadata.annotations.team == 'a'"}]}
    closed = admission(Source([configuration(webhook(**broken))]), a=answering(seen=seen))
    open_ = admission(
        Source([configuration(webhook(**broken, failurePolicy="Ignore"))]), a=answering(seen=seen)
    )

    with pytest.raises(
        Forbidden, match=r'pods "p" is forbidden: expression \'team\' resulted in error: no such key'
    ):
        await create(closed)
    await create(open_)

    assert seen == []


async def test_the_old_objects_labels_select_too() -> None:
    seen: list[Json] = []
    hook = webhook(objectSelector={"matchLabels": {"app": "x"}}, rules=[rule()])
    admit = admission(Source([configuration(hook)]), a=answering(seen=seen))
    unlabelled = {**POD, "metadata": {"name": "p"}}

    await admit.admit(attributes("UPDATE", PODS, "default", POD), unlabelled)
    await admit.admit(attributes("DELETE", PODS, "default", POD), None)

    assert [request["operation"] for request in seen] == ["UPDATE", "DELETE"]


@pytest.mark.parametrize(("policy", "asked"), [("Equivalent", True), ("Exact", False)])
async def test_equivalent_versions_are_converted_for_the_webhook_and_back(policy: str, asked: bool) -> None:
    old, new = (
        Resource(group="example.com", version=version, kind="Widget", plural="widgets")
        for version in ("v1", "v2")
    )
    seen: list[Json] = []
    hook = webhook(rules=[rule(apiGroups=["example.com"], apiVersions=["v1"])], matchPolicy=policy)
    source = Source([configuration(hook)])
    source.versions = [old]
    admit = admission(source, a=answering(label("new"), seen))
    widget = {"apiVersion": "example.com/v2", "kind": "Widget", "metadata": {"name": "w", "labels": {}}}

    assert admit.wants(new, "CREATE", "") is asked
    made = await create(admit, widget, new)

    assert made["apiVersion"] == "example.com/v2"
    assert [request["object"]["apiVersion"] for request in seen] == (["example.com/v1"] if asked else [])
    if asked:
        assert seen[0]["requestResource"]["version"] == "v2"
        assert made["metadata"]["labels"] == {"new": "y"}


def test_webhook_configurations_are_never_shown_to_webhooks() -> None:
    admit = admission(Source([configuration(webhook(rules=[rule()]))]))
    group = "admissionregistration.k8s.io"
    own = Resource(
        group=group, version="v1", kind="X", plural="mutatingwebhookconfigurations", namespaced=False
    )

    assert not admit.wants(own, "UPDATE", "")


def test_without_configurations_nothing_is_wanted() -> None:
    assert not admission(Source()).wants(PODS, "CREATE", "")


async def test_webhooks_that_speak_only_v1beta1_are_asked_in_it() -> None:
    hook = webhook(admissionReviewVersions=["v1beta1"])
    admit = admission(Source([configuration(hook)]), a=answering(label("new"), version="v1beta1"))

    assert (await create(admit))["metadata"]["labels"]["new"] == "y"
