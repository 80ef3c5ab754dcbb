"""Checks of admission: configurations, services, certificates, risks, trial pods; and of permissions."""

from typing import Any

import msgspec
import pytest

from koordinator.api.admission import MutatingWebhookConfiguration, ValidatingWebhookConfiguration
from koordinator.api.apps import Deployment
from koordinator.api.core import Namespace, Pod, Secret, Service
from koordinator.api.meta import Object
from koordinator.cluster import errors
from koordinator.doctor import inquiries
from koordinator.doctor.checks import webhooks
from koordinator.doctor.finding import FindingSeverity
from koordinator.doctor.inquiries import AccessAnswer, AdmissionTest, AdmissionTrial, Handshake, TrialOutcome
from koordinator.doctor.installation import ComponentName
from koordinator.manager.webhooks import certificates, configuration
from tests.doctor import builders
from tests.doctor.builders import NAMESPACE, NOW_S, findings, healthy, only, snapshot

HOST = f"{builders.SERVICE}.{NAMESPACE}.svc"
FAIL = {"mpod-create.koordinator.sh": "Fail", "vpod.koordinator.sh": "Fail"}


def with_webhooks(**settings: Any) -> dict[type[Object], list[Any]]:
    objects = healthy()
    mutating, validating = builders.webhook_configurations(**settings)
    objects[MutatingWebhookConfiguration], objects[ValidatingWebhookConfiguration] = [mutating], [validating]
    return objects


def test_webhooks_that_are_on_by_default_are_missed() -> None:
    objects = healthy()
    objects[ValidatingWebhookConfiguration] = []

    assert [each.object for each in findings("webhooks", snapshot(objects))] == [
        "webhook /validate-pod",
        "webhook /validate-scheduling-sigs-k8s-io-v1alpha1-elasticquota",
    ]


def test_a_webhook_that_was_switched_off_is_not_missed() -> None:
    objects = healthy()
    objects[ValidatingWebhookConfiguration] = []
    flags = ["--feature-gates=PodValidatingWebhook=false,ElasticValidatingWebhook=false"]
    objects[Deployment] = [
        builders.workload("koord-manager", args=flags),
        builders.workload("koord-scheduler"),
    ]

    assert findings("webhooks", snapshot(objects)) == []


def test_gates_of_a_manager_inside_of_koordinator_up_come_from_the_kubeconfig() -> None:
    objects = healthy()
    objects[Deployment], objects[ValidatingWebhookConfiguration] = [], []
    local = {"server_version": "v1.32.0+koordinator"}

    assert len(findings("webhooks", snapshot(objects, **local))) == 2
    gates = "PodValidatingWebhook=false,ElasticValidatingWebhook=false"
    assert findings("webhooks", snapshot(objects, local_gates=gates, **local)) == []


def test_a_service_without_ready_pods_is_told_per_configuration_with_the_consequence() -> None:
    objects = builders.changed(
        Pod, lambda each: None if each.metadata.labels.get("koord-app") == "koord-manager" else each
    )

    found = findings("webhooks", snapshot(objects))

    assert [each.severity for each in found] == [FindingSeverity.ERROR] * 2
    assert all("which has no ready pod" in each.problem for each in found)
    refused, passed = found[0].why.split("; ")
    assert refused == "changes of elasticquotas are refused (failurePolicy Fail)"
    assert passed == "pods are neither mutated nor validated (failurePolicy Ignore)"


@pytest.mark.parametrize(
    ("service", "words"),
    [
        (configuration.WebhookService(name="other"), "does not exist"),
        (configuration.WebhookService(namespace="elsewhere"), "outside the namespace"),
        (configuration.WebhookService(port=8443), "port 8443"),
    ],
)
def test_a_service_that_is_not_ours_is_reported(service: configuration.WebhookService, words: str) -> None:
    objects = healthy()
    ca = builders.certificate().ca_cert
    mutating, _ = configuration.configurations(service, ca_cert=ca, paths=["/mutate-pod"])
    objects[MutatingWebhookConfiguration] = [builders.decoded(MutatingWebhookConfiguration, mutating)]

    assert any(words in each.problem for each in findings("webhooks", snapshot(objects)))
    assert objects[Service]


def test_another_certificate_authority_than_that_of_the_secret_is_reported() -> None:
    stranger = certificates.renewed(None, HOST, NOW_S)
    objects = with_webhooks(ca_cert=stranger.ca_cert)

    found = findings("webhooks", snapshot(objects))

    assert all("does not verify the certificate in Secret" in each.problem for each in found)
    assert len(found) == 2


def test_an_empty_or_broken_ca_bundle_is_reported() -> None:
    for ca, words in ((b"", "is empty"), (b"no certificate", "is not a certificate")):
        found = findings("webhooks", snapshot(with_webhooks(ca_cert=ca)))
        assert found, words
        assert all(words in each.problem for each in found)


@pytest.mark.parametrize(
    ("days", "words"), [(30, "expires in 30 days"), (-3, "expired 3 days ago"), (400, "")]
)
def test_a_certificate_near_its_end_was_not_renewed(days: int, words: str) -> None:
    made_s = NOW_S - (certificates.VALIDITY.days - days) * 86_400.0
    old = certificates.renewed(None, HOST, made_s)
    objects = with_webhooks(ca_cert=old.ca_cert)
    objects[Secret] = [builders.secret(old)]

    found = findings("webhooks", snapshot(objects))

    assert bool(found) is bool(words)
    assert all(words in each.problem for each in found)


def test_a_certificate_for_another_name_or_none_at_all_is_reported() -> None:
    objects = with_webhooks(ca_cert=None)
    other = certificates.renewed(None, "other.svc", NOW_S)
    objects[Secret] = [
        builders.secret(msgspec.structs.replace(other, ca_cert=builders.certificate().ca_cert))
    ]
    assert any(f"not for {HOST}" in each.problem for each in findings("webhooks", snapshot(objects)))

    objects[Secret] = []
    assert only("webhooks", snapshot(objects)).problem == "missing"


def test_fail_for_pods_with_one_replica_stops_pods_at_each_restart() -> None:
    objects = with_webhooks(policies=FAIL)
    objects[Namespace] = [
        builders.decoded(Namespace, {"metadata": {"labels": {"control-plane": "x"}}}, name=each.metadata.name)
        if each.metadata.name == "kube-system"
        else each
        for each in objects[Namespace]
    ]
    assert findings("webhooks", snapshot(objects)) == []

    objects[Deployment][0] = builders.workload("koord-manager", replicas=1)
    found = only("webhooks", snapshot(objects))
    assert (found.severity, found.problem) == (
        FindingSeverity.WARNING,
        "one replica, and failurePolicy Fail for pods",
    )


def test_fail_for_pods_of_kube_system_or_of_the_manager_itself_is_reported() -> None:
    objects = with_webhooks(policies=FAIL)
    found = only("webhooks", snapshot(objects))
    assert (found.severity, found.problem) == (
        FindingSeverity.WARNING,
        "failurePolicy Fail for pods of namespace kube-system",
    )

    objects[Namespace] = [builders.decoded(Namespace, {}, name=NAMESPACE)]
    found = only("webhooks", snapshot(objects))
    assert found.severity is FindingSeverity.ERROR
    assert "own pods can no longer be created" in found.why


@pytest.mark.parametrize(
    ("shake", "words"),
    [
        (Handshake(reached=True), ""),
        (Handshake(reached=True, problem="self-signed certificate"), "not trusted: self-signed"),
        (Handshake(reached=False, problem="Connection refused"), "nobody answers: Connection refused"),
    ],
)
def test_webhooks_with_a_url_are_tried_over_tls(shake: Handshake, words: str) -> None:
    objects = healthy()
    url = "https://127.0.0.1:9876"
    ca = builders.certificate().ca_cert
    policies = dict.fromkeys(FAIL, "Ignore")
    mutating, _ = configuration.configurations(
        url, ca_cert=ca, paths=["/mutate-pod"], failure_policies=policies
    )
    objects[MutatingWebhookConfiguration] = [builders.decoded(MutatingWebhookConfiguration, mutating)]

    found = snapshot(objects, handshakes={url: shake}, server_version="v1.32.0+koordinator")

    missing = "not configured"  # the quota webhook that this configuration lacks
    problems = [
        each.problem
        for each in findings("webhooks", found)
        if each.problem != missing and "kube-system" not in each.problem
    ]
    assert [words in each for each in problems] == ([True] if words else [])


CREATED = AdmissionTrial(outcome=TrialOutcome.CREATED, pod=builders.TRIAL_POD)
REFUSED = AdmissionTrial(outcome=TrialOutcome.REFUSED, webhook="vpod.koordinator.sh", message="denied")
HANGS = AdmissionTrial(outcome=TrialOutcome.UNREACHABLE, message="no answer within 30 s")
LOST = AdmissionTrial(
    outcome=TrialOutcome.UNREACHABLE,
    webhook="mpod-create.koordinator.sh",
    message='failed calling webhook "mpod-create.koordinator.sh": connection refused',
)


@pytest.mark.parametrize(
    ("good", "bad", "words"),
    [
        pytest.param(CREATED, REFUSED, [], id="as it should be"),
        pytest.param(CREATED, CREATED, ["breaks the rules"], id="nobody checks"),
        pytest.param(
            AdmissionTrial(outcome=TrialOutcome.CREATED),
            REFUSED,
            ["does not get annotation"],
            id="nobody changes",
        ),
        pytest.param(LOST, LOST, ["cannot be called"], id="nobody answers"),
        pytest.param(HANGS, HANGS, ["the API server does not answer"], id="something hangs"),
        pytest.param(REFUSED, REFUSED, ["a correct batch pod is refused"], id="profiles refuse everything"),
    ],
)
def test_trial_pods_tell_whether_webhooks_are_asked(
    good: AdmissionTrial, bad: AdmissionTrial, words: list[str]
) -> None:
    found = findings("admission", snapshot(admission=AdmissionTest("default", good, bad)))

    assert len(found) == len(words)
    assert all(word in each.problem for word, each in zip(words, found, strict=True))


class Refusing:
    """A cluster that answers each request with one error."""

    def __init__(self, error: errors.ApiError) -> None:
        self.error = error
        self.count = 0

    async def request(self, *_: Any) -> dict[str, Any]:
        self.count += 1
        raise self.error


@pytest.mark.parametrize(
    ("error", "outcome", "webhook"),
    [
        (
            errors.InternalError('Internal error occurred: failed calling webhook "a.b": refused'),
            TrialOutcome.UNREACHABLE,
            "a.b",
        ),
        (errors.BadRequest('admission webhook "v.k" denied the request: no'), TrialOutcome.REFUSED, "v.k"),
        (errors.Forbidden('pods is forbidden: User "eve" cannot create'), TrialOutcome.NOT_ALLOWED, ""),
        (errors.Invalid("Pod is invalid"), TrialOutcome.REFUSED, ""),
        (errors.ConnectionFailed("no answer within 30 s"), TrialOutcome.UNREACHABLE, ""),
    ],
)
async def test_answers_to_trial_pods_are_told_apart(
    error: errors.ApiError, outcome: TrialOutcome, webhook: str
) -> None:
    tried = await inquiries.try_admission(Refusing(error), "default")  # type: ignore[arg-type]

    assert (tried.good.outcome, tried.good.webhook) == (outcome, webhook)


async def test_permissions_are_asked_for_once_when_nobody_may_ask() -> None:
    cluster = Refusing(errors.Forbidden("subjectaccessreviews is forbidden"))
    workloads = snapshot().installation.workloads.values()

    answers = await inquiries.review_access(cluster, NAMESPACE, workloads)  # type: ignore[arg-type]

    assert (cluster.count, len(answers)) == (1, 1)
    assert findings("access", snapshot(access=answers)) == []


def test_lacking_permissions_are_one_finding_per_component() -> None:
    needs = inquiries.needs(ComponentName.MANAGER, NAMESPACE)
    account = f"system:serviceaccount:{NAMESPACE}:koord-manager"
    answers = [
        AccessAnswer(ComponentName.MANAGER, account, need, allowed=index > 1)
        for index, need in enumerate(needs)
    ]

    found = only("access", snapshot(access=answers))

    assert found.object == f"ServiceAccount {NAMESPACE}/koord-manager"
    assert len(found.objects) == 2
    assert "get nodes (what it computes and decides on)" in found.problem
    assert [line.partition("    #")[0] for line in found.remedy] == [
        "koordinator install --apply",
        "koordinator install --apply --force-conflicts",  # a role that somebody replaced
        f"kubectl auth can-i {needs[0].words} --as={account}",
    ]


def test_a_certificate_is_vouched_for_by_its_own_authority_only() -> None:
    ours, other = builders.certificate(), certificates.renewed(None, HOST, NOW_S)

    assert webhooks.vouches(ours.ca_cert, ours.cert)
    assert not webhooks.vouches(other.ca_cert, ours.cert)
    assert not webhooks.vouches(b"", ours.cert)
    assert webhooks.facts(b"junk") is None
    assert webhooks.facts(ours.cert).names == (HOST, "localhost")  # type: ignore[union-attr]
