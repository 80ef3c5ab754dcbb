"""Resources that no store holds: computed when asked for (reviews: who am I, may I, may they; usage for `kubectl top`),
or carried out (`POST .../bindings`, the older way to put a pod on a node; the body names the pod)."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec

from koordinator import clock
from koordinator.api.meta import Resource
from koordinator.cluster import errors
from koordinator.cluster.backend import Backend, ListOptions
from koordinator.cluster.delegated_auth import User
from koordinator.local.apiserver.auth import Authenticator
from koordinator.local.apiserver.calls import ResourceCall
from koordinator.local.apiserver.discovery import Served
from koordinator.local.authorization.rbac import Authorizer
from koordinator.local.authorization.rules import AccessRequest
from koordinator.local.schema import errors as fields
from koordinator.local.schema.builtin import models
from koordinator.local.schema.builtin.schema import BuiltinSchema


class Extra(Protocol):
    """A resource served by the API server itself."""

    served: Served

    def get(self, call: ResourceCall) -> dict[str, Any]:
        """One object. Raises: ApiError."""
        ...

    def list(self, call: ResourceCall) -> list[dict[str, Any]]:
        """Return all objects. Raises: ApiError."""
        ...

    async def create(self, call: ResourceCall, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a posted object. Raises: ApiError."""
        ...


def not_allowed() -> errors.MethodNotSupported:
    """405 for reading what can only be posted, and for posting what can only be read."""
    return errors.MethodNotSupported("the server does not allow this method on the requested resource")


class _CreateOnly:
    """Base of what can only be posted."""

    def get(self, call: ResourceCall) -> dict[str, Any]:
        raise not_allowed()

    def list(self, call: ResourceCall) -> list[dict[str, Any]]:
        raise not_allowed()


_BINDING = Resource(group="", version="v1", kind="Binding", plural="bindings")


class Bindings(_CreateOnly):
    """Bindings that are posted to their namespace instead of to the pod."""

    def __init__(self, backend: Backend) -> None:
        self.served = Served(_BINDING, ("create",))
        self._backend = backend

    async def create(self, call: ResourceCall, body: dict[str, Any]) -> dict[str, Any]:
        """Raises: ApiError, as the `binding` subresource does."""
        meta = body.get("metadata")
        name = meta.get("name") if isinstance(meta, dict) else None
        if not isinstance(name, str) or not name:
            raise errors.BadRequest("the binding names no pod: metadata.name: Required value")
        pods = self._backend.resolve("", "v1", "pods")
        options = call.write_options("CreateOptions")
        return await self._backend.connect(pods, call.target.namespace, name, "binding", body, options)


_AUTHENTICATION, _AUTHORIZATION = "authentication.k8s.io", "authorization.k8s.io"

Answer = Callable[[ResourceCall, dict[str, Any]], dict[str, Any]]


class Review(_CreateOnly):
    """A resource that can only be posted: the answer is its status."""

    def __init__(self, resource: Resource, status: Answer) -> None:
        self.served = Served(resource, ("create",))
        self._status = status

    async def create(self, call: ResourceCall, body: dict[str, Any]) -> dict[str, Any]:
        resource = self.served.resource
        decoded, _ = self._schema.decode(body, fields.IGNORE)
        answer = {**decoded, "kind": resource.kind, "apiVersion": resource.api_version}
        answer.setdefault("metadata", {})
        answer["status"] = self._status(call, decoded.get("spec", {}))
        return answer

    @functools.cached_property
    def _schema(self) -> BuiltinSchema:
        """Return the type of what is asked, which the answer repeats: so it must be of its type, as every stored object
        is."""
        resource = self.served.resource
        shape = models.struct_of(models.model_of(resource.group, resource.version, resource.kind))
        return BuiltinSchema(resource, shape)


def all_reviews(authenticator: Authenticator, authorizer: Authorizer) -> list[Review]:
    """Return every review that is served."""
    reviews = _AccessReviews(authorizer)

    def token_status(call: ResourceCall, spec: dict[str, Any]) -> dict[str, Any]:
        secret = spec.get("token")
        user = authenticator.user_of_token(secret) if isinstance(secret, str) else None
        if user is None:
            return {"authenticated": False, "user": {}, "error": "invalid bearer token"}
        return {"authenticated": True, "user": _user_info(user)}

    return [
        Review(_resource(_AUTHENTICATION, "TokenReview"), token_status),
        Review(
            _resource(_AUTHENTICATION, "SelfSubjectReview"),
            lambda call, spec: {"userInfo": _user_info(call.user)},
        ),
        Review(_resource(_AUTHORIZATION, "SelfSubjectAccessReview"), reviews.own),
        Review(_resource(_AUTHORIZATION, "SubjectAccessReview"), reviews.others),
        Review(_resource(_AUTHORIZATION, "LocalSubjectAccessReview", namespaced=True), reviews.local),
        Review(_resource(_AUTHORIZATION, "SelfSubjectRulesReview"), reviews.rules),
    ]


def _resource(group: str, kind: str, *, namespaced: bool = False) -> Resource:
    return Resource(group=group, version="v1", kind=kind, plural=kind.lower() + "s", namespaced=namespaced)


class _AccessReviews:
    """The reviews of `authorization.k8s.io`."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer

    def own(self, call: ResourceCall, spec: dict[str, Any]) -> dict[str, Any]:
        return self._decision(call.user.name, call.user.groups, _request_of(spec))

    def others(self, call: ResourceCall, spec: dict[str, Any]) -> dict[str, Any]:
        asked = _request_of(spec)
        return self._decision(*_subject_of(spec), asked)

    def local(self, call: ResourceCall, spec: dict[str, Any]) -> dict[str, Any]:
        path = spec.get("nonResourceAttributes")
        if path:
            shown = {key.capitalize(): value for key, value in path.items()}
            raise _invalid("spec.nonResourceAttributes", shown, "disallowed on this kind of request")
        asked = _request_of(spec)
        if asked.namespace != call.target.namespace:
            why = "must match metadata.namespace"
            raise _invalid("spec.resourceAttributes.namespace", asked.namespace, why)
        return self._decision(*_subject_of(spec), asked)

    def rules(self, call: ResourceCall, spec: dict[str, Any]) -> dict[str, Any]:
        namespace = spec.get("namespace")
        if not isinstance(namespace, str) or not namespace:
            raise errors.BadRequest("no namespace on request")
        held, problems = self._authorizer.rules_of(call.user.name, call.user.groups, namespace)
        raw = [rule.raw for rule in held]
        status: dict[str, Any] = {
            "resourceRules": [
                _only(rule, "verbs", "apiGroups", "resources", "resourceNames")
                for rule in raw
                if rule.get("resources")
            ],
            "nonResourceRules": [
                _only(rule, "verbs", "nonResourceURLs") for rule in raw if rule.get("nonResourceURLs")
            ],
            "incomplete": False,
        }
        if problems:
            status["evaluationError"] = ", ".join(problems)
        return status

    def _decision(self, user: str, groups: tuple[str, ...], asked: AccessRequest) -> dict[str, Any]:
        decision = self._authorizer.decide(user, groups, asked)
        return {"allowed": decision.allowed, **({"reason": decision.reason} if decision.reason else {})}


def _only(rule: dict[str, Any], *fields: str) -> dict[str, Any]:
    return {field: rule[field] for field in fields if rule.get(field)}


def _subject_of(spec: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Return the user and the groups that are asked about. Raises: Invalid."""
    user, groups = spec.get("user") or "", spec.get("groups") or []
    if not user and not groups:
        raise _invalid("spec.user", "", "at least one of user or group must be specified")
    if not isinstance(user, str) or not isinstance(groups, list):
        raise errors.BadRequest("spec.user must be a string, spec.groups a list of strings")
    return user, tuple(str(group) for group in groups)


def _request_of(spec: dict[str, Any]) -> AccessRequest:
    """Return the request that is asked about. Raises: BadRequest, Invalid."""
    resource, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if bool(resource is not None) == bool(path is not None):
        why = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        raise _invalid("spec.resourceAttributes", None, why)
    attributes = resource if resource is not None else path
    if not isinstance(attributes, dict) or not all(
        isinstance(attributes.get(field, ""), str) for field in _TEXTS
    ):
        raise errors.BadRequest("attributes of an access review must be strings")
    if resource is None:
        return AccessRequest(verb=attributes.get("verb", ""), path=attributes.get("path", ""))
    return AccessRequest(
        verb=attributes.get("verb", ""),
        group=attributes.get("group", ""),
        resource=attributes.get("resource", ""),
        subresource=attributes.get("subresource", ""),
        namespace=attributes.get("namespace", ""),
        name=attributes.get("name", ""),
    )


_TEXTS = ("verb", "group", "resource", "subresource", "namespace", "name", "path")


def _invalid(field: str, value: Any, why: str) -> errors.Invalid:
    return fields.invalid_kind(_AUTHORIZATION, "", "", [fields.invalid(field, value, why)])


def _user_info(user: User) -> dict[str, Any]:
    uid = {"uid": user.uid} if user.uid else {}
    return {"username": user.name, **uid, "groups": list(user.groups)}


_NODE_METRICS = ("slo.koordinator.sh", "v1alpha1", "nodemetrics")
_REPORT_INTERVAL_S = 60  # NodeMetric's default aggregation window


class UsageSample(msgspec.Struct, frozen=True):
    """The usage of a node or pod, as a NodeMetric reports it, over a window that ended at `time`."""

    namespace: str
    name: str
    amounts: dict[str, Any]
    time: str


class UsageMetrics:
    """NodeMetrics or PodMetrics of `metrics.k8s.io/v1beta1`; empty while there are no NodeMetric objects."""

    def __init__(self, kind: str, plural: str, backend: Backend) -> None:
        namespaced = kind == "PodMetrics"
        resource = Resource(
            group="metrics.k8s.io", version="v1beta1", kind=kind, plural=plural, namespaced=namespaced
        )
        self.served = Served(resource, ("get", "list"))
        self._backend = backend
        self._core = backend.resolve("", "v1", plural)

    def get(self, call: ResourceCall) -> dict[str, Any]:
        for item in self.list(call):
            if item["metadata"]["name"] == call.target.name:
                return item
        resource = self.served.resource
        raise errors.not_found(
            resource.qualified, call.target.name, group=resource.group, kind=resource.plural
        )

    def list(self, call: ResourceCall) -> list[dict[str, Any]]:
        """Usage of the nodes or pods that the selectors name and that still exist."""
        target = call.target
        options = ListOptions(
            label_selector=call.params.get("labelSelector", ""),
            field_selector=call.params.get("fieldSelector", ""),
        )
        known = {
            (meta.get("namespace", ""), meta["name"]): meta.get("labels", {})
            for meta in (
                r.obj["metadata"] for r in self._backend.list(self._core, target.namespace, options).records
            )
        }
        return [
            self._object(usage, known[usage.namespace, usage.name])
            for usage in self._samples()
            if (usage.namespace, usage.name) in known
        ]

    async def create(self, call: ResourceCall, body: dict[str, Any]) -> dict[str, Any]:
        """Refuse to create anything. Raises: MethodNotSupported."""
        raise not_allowed()

    def _samples(self) -> Iterator[UsageSample]:
        try:
            resource = self._backend.resolve(*_NODE_METRICS)
        except errors.NotFound:
            return
        for record in self._backend.list(resource, "", ListOptions()).records:
            status = record.obj.get("status")
            if not isinstance(status, dict) or not status.get("updateTime"):
                continue
            if self.served.resource.namespaced:
                found = [
                    (pod.get("namespace", ""), pod.get("name", ""), pod.get("podUsage"))
                    for pod in status.get("podsMetric") or []
                ]
            else:
                found = [("", record.obj["metadata"]["name"], status.get("nodeMetric", {}).get("nodeUsage"))]
            for namespace, name, used in found:
                if amounts := _resources(used):
                    yield UsageSample(namespace, name, amounts, str(status["updateTime"]))

    def _object(self, usage: UsageSample, labels: dict[str, str]) -> dict[str, Any]:
        resource = self.served.resource
        meta: dict[str, Any] = {
            "name": usage.name,
            "creationTimestamp": clock.rfc3339(self._backend.clock.now()),
        }
        if usage.namespace:
            meta["namespace"] = usage.namespace
        if labels:
            meta["labels"] = labels
        amounts = {name: str(usage.amounts.get(name, "0")) for name in ("cpu", "memory")}
        body: dict[str, Any] = {
            "kind": resource.kind,
            "apiVersion": resource.api_version,
            "metadata": meta,
            "timestamp": usage.time,
            "window": f"{_REPORT_INTERVAL_S}s",
        }
        if resource.namespaced:
            # NodeMetric reports pods as a whole; the sum over "containers" is what kubectl shows.
            body["containers"] = [{"name": usage.name, "usage": amounts}]
        else:
            body["usage"] = amounts
        return body


def _resources(used: Any) -> dict[str, Any]:
    found = used.get("resources") if isinstance(used, dict) else None
    return found if isinstance(found, dict) else {}
