"""Typed views of admission webhook configurations."""

from typing import ClassVar

from koordinator.api.affinity import LabelSelector
from koordinator.api.meta import Object, Resource, ViewPart


class ServiceReference(ViewPart, frozen=True, kw_only=True):
    namespace: str = ""
    name: str = ""
    path: str | None = None
    port: int | None = None


class WebhookClientConfig(ViewPart, frozen=True, kw_only=True):
    """The address at which a webhook listens: `url` or `service`. `ca_bundle` is base64 of PEM certificates."""

    url: str | None = None
    service: ServiceReference | None = None
    ca_bundle: str | None = None


class RuleWithOperations(ViewPart, frozen=True, kw_only=True):
    """The requests about which the API server asks a webhook; `*` matches all. `resources` may name subresources
    (`pods/status`)."""

    operations: list[str] = []
    api_groups: list[str] = []
    api_versions: list[str] = []
    resources: list[str] = []
    scope: str | None = None


class MatchCondition(ViewPart, frozen=True, kw_only=True):
    """A CEL expression that must hold for the webhook to be called."""

    name: str = ""
    expression: str = ""


class Webhook(ViewPart, frozen=True, kw_only=True):
    """A mutating or validating webhook; `reinvocation_policy` belongs to mutating ones only."""

    name: str = ""
    client_config: WebhookClientConfig = WebhookClientConfig()
    rules: list[RuleWithOperations] = []
    failure_policy: str | None = None
    match_policy: str | None = None
    namespace_selector: LabelSelector | None = None
    object_selector: LabelSelector | None = None
    side_effects: str | None = None
    timeout_seconds: int | None = None
    admission_review_versions: list[str] = []
    reinvocation_policy: str | None = None
    match_conditions: list[MatchCondition] = []


class MutatingWebhookConfiguration(Object, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        group="admissionregistration.k8s.io",
        version="v1",
        kind="MutatingWebhookConfiguration",
        plural="mutatingwebhookconfigurations",
        namespaced=False,
        categories=("api-extensions",),
    )

    webhooks: list[Webhook] = []


class ValidatingWebhookConfiguration(Object, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        group="admissionregistration.k8s.io",
        version="v1",
        kind="ValidatingWebhookConfiguration",
        plural="validatingwebhookconfigurations",
        namespaced=False,
        categories=("api-extensions",),
    )

    webhooks: list[Webhook] = []
