"""What users with tokens may do over HTTP, and what they are told; the texts are kube-apiserver 1.35's."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from koordinator.clock import FixedClock
from koordinator.local import registry
from koordinator.local.apiserver import ApiServer
from koordinator.local.apiserver.auth import StaticToken
from tests.local.apiserver.requests import send

RBAC = "/apis/rbac.authorization.k8s.io/v1"
REVIEWS = "/apis/authorization.k8s.io/v1"
WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
AS_BOB = {"Authorization": "Bearer bob"}
AS_ADMIN = {"Authorization": "Bearer admin"}


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """A server with the default roles; Bob may view the namespace `team`, and edit roles everywhere."""
    backend = registry.in_memory(FixedClock())
    registry.seed_roles(backend)
    tokens = [StaticToken("admin", "admin"), StaticToken("bob", "bob", "2", ("dev",))]
    server = ApiServer(backend, tokens=tokens, authorizer=backend.authorizer)
    await server.start()
    async with aiohttp.ClientSession(server.url) as session:
        await create(session, "/api/v1/namespaces", {"metadata": {"name": "team"}})
        await create(session, f"{RBAC}/namespaces/team/rolebindings", binding("bob-views", "view", "bob"))
        verbs = ["create", "update", "patch", "get", "list"]
        plurals = ["roles", "rolebindings", "clusterroles"]
        editor = [{"apiGroups": ["rbac.authorization.k8s.io"], "resources": plurals, "verbs": verbs}]
        await create(session, f"{RBAC}/clusterroles", role("rbac-editor", editor))
        await create(session, f"{RBAC}/clusterrolebindings", binding("bob-rbac", "rbac-editor", "bob"))
        yield session
    await server.stop()


async def create(http: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> None:
    code, answer = await send(http, "POST", path, body, AS_ADMIN)
    assert code == 201, answer


def role(name: str, rules: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "rules": rules, **more}


def binding(name: str, role: str, *users: str, kind: str = "ClusterRole") -> dict[str, Any]:
    group = "rbac.authorization.k8s.io"
    subjects = [{"apiGroup": group, "kind": "User", "name": user} for user in users]
    ref = {"apiGroup": group, "kind": kind, "name": role}
    return {"metadata": {"name": name}, "roleRef": ref, "subjects": subjects}


DEFAULT_PODS = "/api/v1/namespaces/default/pods"
APPLY = {"Content-Type": "application/apply-patch+yaml"}


@pytest.mark.parametrize(
    ("method", "path", "message", "details"),
    [
        (
            "GET",
            DEFAULT_PODS,
            'pods is forbidden: User "bob" cannot list resource "pods" in API group "" in the namespace "default"',
            {"kind": "pods"},
        ),
        (
            "GET",
            f"{DEFAULT_PODS}/x",
            'pods "x" is forbidden: User "bob" cannot get resource "pods" in API group "" in the namespace "default"',
            {"name": "x", "kind": "pods"},
        ),
        (
            "GET",
            "/api/v1/nodes",
            'nodes is forbidden: User "bob" cannot list resource "nodes" in API group "" at the cluster scope',
            {"kind": "nodes"},
        ),
        (
            "GET",
            "/api/v1/nodes?watch=true",
            'nodes is forbidden: User "bob" cannot watch resource "nodes" in API group "" at the cluster scope',
            {"kind": "nodes"},
        ),
        (
            "GET",
            "/apis/apps/v1/namespaces/default/deployments/x/scale",
            'deployments.apps "x" is forbidden: User "bob" cannot get resource "deployments/scale" in API group '
            '"apps" in the namespace "default"',
            {"name": "x", "group": "apps", "kind": "deployments"},
        ),
        ("GET", "/metrics", 'forbidden: User "bob" cannot get path "/metrics"', {}),
        (
            "GET",
            "/apis/nonsense.io/v1/foos",
            'foos.nonsense.io is forbidden: User "bob" cannot list resource "foos" in API group "nonsense.io" at the '
            "cluster scope",
            {"group": "nonsense.io", "kind": "foos"},
        ),
        (
            "GET",
            "/api/v1/namespaces/default",
            'namespaces "default" is forbidden: User "bob" cannot get resource "namespaces" in API group "" in the '
            'namespace "default"',
            {"name": "default", "kind": "namespaces"},
        ),
        (
            "DELETE",
            "/api/v1/namespaces/team/pods",
            'pods is forbidden: User "bob" cannot deletecollection resource "pods" in API group "" in the namespace '
            '"team"',
            {"kind": "pods"},
        ),
        (
            "DELETE",
            "/api/v1/namespaces/team/pods/foo",
            'pods "foo" is forbidden: User "bob" cannot delete resource "pods" in API group "" in the namespace "team"',
            {"name": "foo", "kind": "pods"},
        ),
    ],
)
async def test_what_no_role_allows_is_refused_in_the_words_of_kubernetes(
    http: aiohttp.ClientSession, method: str, path: str, message: str, details: dict[str, Any]
) -> None:
    code, answer = await send(http, method, path, None, AS_BOB)

    assert (code, answer["reason"], answer["message"]) == (403, "Forbidden", message)
    assert answer["details"] == details


async def test_a_role_bound_in_a_namespace_counts_there_and_everybody_may_discover(
    http: aiohttp.ClientSession,
) -> None:
    for path in (
        "/api/v1/namespaces/team/pods",
        "/api/v1/namespaces/team",
        "/api",
        "/version",
        "/openapi/v3",
    ):
        code, answer = await send_any(http, path)
        assert code in (200, 404), (path, answer)  # 404: without a document to serve


async def send_any(http: aiohttp.ClientSession, path: str) -> tuple[int, str]:
    async with http.get(path, headers=AS_BOB) as response:
        return response.status, await response.text()


async def test_a_rule_about_one_name_allows_lists_and_watches_of_that_name_only(
    http: aiohttp.ClientSession,
) -> None:
    one = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["mine"], "verbs": ["list", "get"]}
    await create(http, f"{RBAC}/namespaces/default/roles", role("one", [one]))
    await create(http, f"{RBAC}/namespaces/default/rolebindings", binding("one", "one", "bob", kind="Role"))

    secrets = "/api/v1/namespaces/default/secrets"
    assert (await send(http, "GET", f"{secrets}?fieldSelector=metadata.name=mine", None, AS_BOB))[0] == 200
    assert (await send(http, "GET", f"{secrets}?fieldSelector=metadata.name=other", None, AS_BOB))[0] == 403
    assert (await send(http, "GET", secrets, None, AS_BOB))[0] == 403
    assert (await send(http, "GET", f"{secrets}/mine", None, AS_BOB))[0] == 404


async def test_a_binding_counts_from_its_creation_to_its_deletion(http: aiohttp.ClientSession) -> None:
    path = "/api/v1/namespaces/default/pods"
    await create(http, f"{RBAC}/namespaces/default/rolebindings", binding("b", "view", "bob"))
    assert (await send(http, "GET", path, None, AS_BOB))[0] == 200

    await send(http, "DELETE", f"{RBAC}/namespaces/default/rolebindings/b", None, AS_ADMIN)
    assert (await send(http, "GET", path, None, AS_BOB))[0] == 403


async def test_a_role_that_is_missing_is_named_in_refusals(http: aiohttp.ClientSession) -> None:
    await create(http, f"{RBAC}/namespaces/team/rolebindings", binding("lost", "nope", "bob"))

    _, answer = await send(http, "GET", "/api/v1/namespaces/team/secrets", None, AS_BOB)

    assert answer["message"].endswith(': RBAC: clusterrole.rbac.authorization.k8s.io "nope" not found')


async def test_server_side_apply_that_creates_needs_the_right_to_create(http: aiohttp.ClientSession) -> None:
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["patch"]}
    await create(http, f"{RBAC}/clusterroles", role("patcher", [rule]))
    await create(http, f"{RBAC}/clusterrolebindings", binding("patcher", "patcher", "bob"))
    path = "/api/v1/namespaces/team/configmaps/q"
    applied = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "q"}}

    code, answer = await send(http, "PATCH", f"{path}?fieldManager=x", applied, {**AS_BOB, **APPLY})
    assert code == 403
    assert answer["message"] == (
        'configmaps "q" is forbidden: User "bob" cannot create resource "configmaps" in API group "" in the '
        'namespace "team"'
    )

    await create(http, "/api/v1/namespaces/team/configmaps", applied)
    code, _ = await send(http, "PATCH", f"{path}?fieldManager=x", applied, {**AS_BOB, **APPLY})
    assert code == 200


@pytest.mark.parametrize(
    ("headers", "user"),
    [
        (
            {"Impersonate-User": "eve", "Impersonate-Uid": "3", "Impersonate-Extra-Scopes": "x"},
            {"username": "eve", "uid": "3", "groups": ["system:authenticated"]},
        ),
        (
            {"Impersonate-User": "system:serviceaccount:a:b"},
            {
                "username": "system:serviceaccount:a:b",
                "groups": ["system:serviceaccounts", "system:serviceaccounts:a", "system:authenticated"],
            },
        ),
    ],
)
async def test_administrators_act_as_others_with_their_rights_only(
    http: aiohttp.ClientSession, headers: dict[str, str], user: dict[str, Any]
) -> None:
    _, answer = await send(http, "POST", WHO, {}, {**AS_ADMIN, **headers})
    assert answer["status"]["userInfo"] == user

    assert (await send(http, "GET", DEFAULT_PODS, None, {**AS_ADMIN, **headers}))[0] == 403


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        (
            {"Impersonate-User": "eve"},
            'users "eve" is forbidden: User "bob" cannot impersonate resource "users" in API group "" at the cluster '
            "scope",
        ),
        (
            {"Impersonate-User": "system:serviceaccount:team:x"},
            'serviceaccounts "x" is forbidden: User "bob" cannot impersonate resource "serviceaccounts" in API group '
            '"" in the namespace "team"',
        ),
    ],
)
async def test_others_need_a_role_to_act_as_somebody(
    http: aiohttp.ClientSession, headers: dict[str, str], message: str
) -> None:
    code, answer = await send(http, "GET", DEFAULT_PODS, None, {**AS_BOB, **headers})

    assert (code, answer["message"]) == (403, message)


async def test_the_anonymous_user_may_not_even_ask_who_he_is_and_groups_need_a_user(
    http: aiohttp.ClientSession,
) -> None:
    _, answer = await send(http, "POST", WHO, {}, {**AS_ADMIN, "Impersonate-User": "system:anonymous"})
    assert answer["message"] == (
        'selfsubjectreviews.authentication.k8s.io is forbidden: User "system:anonymous" cannot create resource '
        '"selfsubjectreviews" in API group "authentication.k8s.io" at the cluster scope'
    )
    code, _ = await send(http, "GET", DEFAULT_PODS, None, {**AS_ADMIN, "Impersonate-Group": "x"})
    assert code == 400


LIST_PODS = {"verb": "list", "resource": "pods", "namespace": "team"}


@pytest.mark.parametrize(
    ("path", "spec", "status"),
    [
        (
            "subjectaccessreviews",
            {"user": "bob", "resourceAttributes": LIST_PODS},
            {
                "allowed": True,
                "reason": 'RBAC: allowed by RoleBinding "bob-views/team" of ClusterRole "view" to User "bob"',
            },
        ),
        (
            "subjectaccessreviews",
            {"user": "eve", "groups": ["dev"], "resourceAttributes": LIST_PODS},
            {"allowed": False},
        ),
        (
            "subjectaccessreviews",
            {
                "user": "x",
                "groups": ["system:authenticated"],
                "nonResourceAttributes": {"path": "/api", "verb": "get"},
            },
            {
                "allowed": True,
                "reason": 'RBAC: allowed by ClusterRoleBinding "system:discovery" of ClusterRole "system:discovery" '
                'to Group "system:authenticated"',
            },
        ),
        (
            "namespaces/team/localsubjectaccessreviews",
            {"user": "bob", "resourceAttributes": {**LIST_PODS, "subresource": "log", "verb": "get"}},
            {
                "allowed": True,
                "reason": 'RBAC: allowed by RoleBinding "bob-views/team" of ClusterRole "view" to User "bob"',
            },
        ),
        ("selfsubjectaccessreviews", {"resourceAttributes": LIST_PODS}, {"allowed": True}),
    ],
)
async def test_access_reviews_answer_by_the_roles(
    http: aiohttp.ClientSession, path: str, spec: dict[str, Any], status: dict[str, Any]
) -> None:
    code, answer = await send(http, "POST", f"{REVIEWS}/{path}", {"spec": spec}, AS_ADMIN)

    assert (code, answer["status"]) == (201, status)


@pytest.mark.parametrize(
    ("path", "spec", "message"),
    [
        (
            "subjectaccessreviews",
            {"nonResourceAttributes": {"path": "/api", "verb": "get"}},
            'spec.user: Invalid value: "": at least one of user or group must be specified',
        ),
        (
            "subjectaccessreviews",
            {"user": "bob"},
            "spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes "
            "must be specified",
        ),
        (
            "namespaces/team/localsubjectaccessreviews",
            {"user": "bob", "resourceAttributes": {**LIST_PODS, "namespace": "tea"}},
            'spec.resourceAttributes.namespace: Invalid value: "tea": must match metadata.namespace',
        ),
        (
            "namespaces/team/localsubjectaccessreviews",
            {"user": "bob", "nonResourceAttributes": {"path": "/api", "verb": "get"}},
            'spec.nonResourceAttributes: Invalid value: {"Path":"/api","Verb":"get"}: disallowed on this kind of '
            "request",
        ),
    ],
)
async def test_access_reviews_that_make_no_sense_are_refused_as_kubernetes_does(
    http: aiohttp.ClientSession, path: str, spec: dict[str, Any], message: str
) -> None:
    code, answer = await send(http, "POST", f"{REVIEWS}/{path}", {"spec": spec}, AS_ADMIN)

    assert (code, answer["message"]) == (422, f'.authorization.k8s.io "" is invalid: {message}')


async def test_the_rules_review_lists_what_the_user_has(http: aiohttp.ClientSession) -> None:
    path = f"{REVIEWS}/selfsubjectrulesreviews"
    await create(http, f"{RBAC}/namespaces/team/rolebindings", binding("lost", "nope", "bob"))

    _, answer = await send(http, "POST", path, {"spec": {"namespace": "team"}}, AS_BOB)

    status = answer["status"]
    reviews = ["selfsubjectaccessreviews", "selfsubjectrulesreviews"]
    own = {"verbs": ["create"], "apiGroups": ["authorization.k8s.io"], "resources": reviews}
    assert own in status["resourceRules"]
    assert {"get"} == {verb for rule in status["nonResourceRules"] for verb in rule["verbs"]}
    assert status["evaluationError"] == 'clusterrole.rbac.authorization.k8s.io "nope" not found'
    assert (await send(http, "POST", path, {"spec": {}}, AS_BOB))[1]["message"] == "no namespace on request"


GRANT = (
    'user "bob" (groups=["dev" "system:authenticated"]) is attempting to grant RBAC permissions not currently '
    "held:\n"
)


def rule(group: str, resources: list[str], verbs: list[str], **more: Any) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs, **more}


@pytest.mark.parametrize(
    ("where", "body", "why"),
    [
        (
            "namespaces/team/roles",
            role("r", [rule("", ["pods", "secrets"], ["get", "list", "delete"])]),
            f'roles.rbac.authorization.k8s.io "r" is forbidden: {GRANT}'
            '{APIGroups:[""], Resources:["pods"], Verbs:["delete"]}\n'
            '{APIGroups:[""], Resources:["secrets"], Verbs:["get" "list" "delete"]}',
        ),
        (
            "namespaces/team/roles",
            role(
                "r",
                [rule("", ["pods"], ["delete"], resourceNames=["a", "b"]), rule("apps", ["*"], ["*"])],
            ),
            f'roles.rbac.authorization.k8s.io "r" is forbidden: {GRANT}'
            '{APIGroups:[""], Resources:["pods"], ResourceNames:["a"], Verbs:["delete"]}\n'
            '{APIGroups:[""], Resources:["pods"], ResourceNames:["b"], Verbs:["delete"]}\n'
            '{APIGroups:["apps"], Resources:["*"], Verbs:["*"]}',
        ),
        (
            "clusterroles",
            role("c", [{"nonResourceURLs": ["/metrics", "/x"], "verbs": ["get", "post"]}]),
            f'clusterroles.rbac.authorization.k8s.io "c" is forbidden: {GRANT}'
            '{NonResourceURLs:["/metrics"], Verbs:["get"]}\n'
            '{NonResourceURLs:["/metrics"], Verbs:["post"]}\n'
            '{NonResourceURLs:["/x"], Verbs:["get"]}\n'
            '{NonResourceURLs:["/x"], Verbs:["post"]}',
        ),
        (
            "clusterroles",
            role("c", [], aggregationRule={"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}),
            'clusterroles.rbac.authorization.k8s.io "c" is forbidden: must have cluster-admin privileges to use the '
            "aggregationRule",
        ),
        (
            "namespaces/team/rolebindings",
            binding("b", "system:volume-scheduler", "x"),
            f'rolebindings.rbac.authorization.k8s.io "b" is forbidden: {GRANT}'
            '{APIGroups:[""], Resources:["persistentvolumeclaims"], Verbs:["patch" "update"]}\n'
            '{APIGroups:[""], Resources:["persistentvolumes"], Verbs:["get" "list" "patch" "update" "watch"]}\n'
            '{APIGroups:["storage.k8s.io"], Resources:["storageclasses"], Verbs:["get" "list" "watch"]}',
        ),
        (
            "namespaces/team/rolebindings",
            binding("b", "nope", "x"),
            'rolebindings.rbac.authorization.k8s.io "nope" not found',
        ),
    ],
)
async def test_nobody_gives_away_rights_that_he_does_not_have(
    http: aiohttp.ClientSession, where: str, body: dict[str, Any], why: str
) -> None:
    _, answer = await send(http, "POST", f"{RBAC}/{where}", body, AS_BOB)

    assert answer["message"] == why


async def test_what_one_has_can_be_given_and_bind_and_escalate_give_more(http: aiohttp.ClientSession) -> None:
    roles, bindings = f"{RBAC}/namespaces/team/roles", f"{RBAC}/namespaces/team/rolebindings"
    secrets = role("secrets", [rule("", ["secrets"], ["get"])])
    held = role("held", [rule("", ["pods"], ["get"])])
    assert (await send(http, "POST", roles, held, AS_BOB))[0] == 201
    assert (await send(http, "POST", bindings, binding("b", "view", "x"), AS_BOB))[0] == 201
    assert (await send(http, "POST", bindings, binding("c", "edit", "x"), AS_BOB))[0] == 403

    more = [rule("rbac.authorization.k8s.io", ["roles", "clusterroles"], ["bind", "escalate"])]
    await create(http, f"{RBAC}/clusterroles", role("more", more))
    await create(http, bindings, binding("more", "more", "bob"))
    assert (await send(http, "POST", roles, secrets, AS_BOB))[0] == 201
    assert (await send(http, "POST", bindings, binding("c", "edit", "x"), AS_BOB))[0] == 201


async def test_without_tokens_acting_as_somebody_means_to_have_his_rights() -> None:
    backend = registry.in_memory(FixedClock())
    registry.seed_roles(backend)
    server = ApiServer(backend, authorizer=backend.authorizer)
    await server.start()
    async with aiohttp.ClientSession(server.url) as http:
        assert (await send(http, "GET", DEFAULT_PODS))[0] == 200
        assert (await send(http, "GET", DEFAULT_PODS, None, {"Impersonate-User": "bob"}))[0] == 403
    await server.stop()


async def test_a_service_account_is_who_its_token_says_with_its_rights_only() -> None:
    backend = registry.in_memory(FixedClock(1_800_000_000.0))
    registry.seed_roles(backend)
    server = ApiServer(backend, authorizer=backend.authorizer, accounts=backend.tokens)
    await server.start()
    async with aiohttp.ClientSession(server.url) as http:
        path = "/api/v1/namespaces/default/serviceaccounts/default"
        _, answer = await send(http, "POST", f"{path}/token", {"spec": {}})
        as_account = {"Authorization": f"Bearer {answer['status']['token']}"}

        _, who = await send(http, "POST", WHO, {}, as_account)
        assert who["status"]["userInfo"]["username"] == "system:serviceaccount:default:default"
        assert (await send(http, "GET", DEFAULT_PODS, None, as_account))[0] == 403
        account = {"kind": "ServiceAccount", "name": "default"}
        bound = {**binding("b", "view"), "subjects": [account]}
        assert (await send(http, "POST", f"{RBAC}/namespaces/default/rolebindings", bound))[0] == 201
        assert (await send(http, "GET", DEFAULT_PODS, None, as_account))[0] == 200

        await send(http, "DELETE", path)
        assert (await send(http, "GET", DEFAULT_PODS, None, as_account))[0] == 401
    await server.stop()
