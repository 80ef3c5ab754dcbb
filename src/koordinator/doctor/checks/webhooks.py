"""Are our webhooks configured, does somebody answer behind each, and is its certificate the trusted one? Are pods
really changed and checked when they are created? Two trial pods tell.

Certificates say whom they name, until when they hold, and whether one vouches for another.
"""

import base64
import binascii
from collections.abc import Iterator, Sequence

import msgspec
from cryptography import x509

from koordinator.api import label_selector, labels
from koordinator.api.admission import ServiceReference, Webhook
from koordinator.api.core import Pod, Secret, Service
from koordinator.api.errors import ProtocolError
from koordinator.api.meta import Object, is_condition_true, named
from koordinator.cluster.certificates import is_signed_by_any
from koordinator.doctor.finding import Finding, FindingSeverity, some_of
from koordinator.doctor.gather import ca_of
from koordinator.doctor.inquiries import AdmissionTest, AdmissionTrial, TrialOutcome, address
from koordinator.doctor.installation import ComponentName
from koordinator.doctor.snapshot import ClusterSnapshot
from koordinator.install.predecessor import WEBHOOK_SUFFIX
from koordinator.manager.webhooks import certificates, table
from koordinator.manager.webhooks import configuration as shipped

RENEWED_DAYS = certificates.RENEW_BEFORE.days
"""Less is left only where the manager did not renew."""
DAY_S = 86_400.0
KUBE_SYSTEM = "kube-system"

LOSSES = {
    table.MUTATE_POD: "profiles are not applied to new pods",
    table.VALIDATE_POD: "pods with invalid combinations of QoS and priority are accepted",
    table.MUTATE_QUOTA: "new quotas get no parent and no shared weight",
    table.VALIDATE_QUOTA: "inconsistent quotas are accepted",
}
"""Consequences of missing webhooks that are on by default."""


def check(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Missing webhooks; endpoints, certificates and failure policies of those that are there."""
    yield from _missing(snapshot)
    troubles: dict[tuple[str, str], list[_Trouble]] = {}
    for configuration, webhook in snapshot.webhooks:
        for trouble in _troubles(snapshot, configuration, webhook):
            troubles.setdefault((trouble.about, trouble.problem), []).append(trouble)
    for (about, problem), same in troubles.items():
        # The webhooks of a configuration share their server: what is wrong with it is told once.
        webhooks = [each.webhook for each in same]
        yield Finding.of(
            FindingSeverity.ERROR if any(map(_refuses, webhooks)) else FindingSeverity.WARNING,
            about,
            problem,
            why=_consequences(webhooks),
            do=same[0].steps,
            objects=[each.name for each in webhooks] if len(webhooks) > 1 else (),
        )
    ends: set[str] = set()
    for configuration, webhook in snapshot.webhooks:
        if configuration.key not in ends and (found := facts(ca_of(webhook))) is not None:
            ends.add(configuration.key)
            # After a renewal the bundle has the authority before, too, for a while.
            yield from _end(snapshot, named(configuration), "caBundle", found.last_end_s)
    yield from _risks(snapshot)
    yield from _served_certificate(snapshot)


class _Trouble(msgspec.Struct, frozen=True):
    """The reason why a webhook cannot be asked: in which configuration, what is wrong, what to do."""

    about: str
    webhook: Webhook
    problem: str
    steps: tuple[str, ...]


def _missing(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    if snapshot.installation.manager_gate(table.FRAMEWORK_GATE) is False:
        yield Finding.notice(
            "webhooks",
            "switched off by feature gate WebhookFramework",
            why="pods and quotas are neither mutated nor validated",
        )
        return
    for path, loss in LOSSES.items():
        is_off = any(snapshot.installation.manager_gate(gate) is False for gate in table.GATES_BY_PATH[path])
        if path not in snapshot.webhook_paths and not is_off:
            yield Finding.error(
                f"webhook {path}",
                "not configured",
                why=loss,
                do=(
                    _manager_log(snapshot) + "    # the manager adds its webhooks once it is ready",
                    "koordinator install --apply    # if the webhook configurations are missing",
                ),
            )


def _refuses(webhook: Webhook) -> bool:
    """Return whether requests are refused while the webhook does not answer (which is the API server's default)."""
    return webhook.failure_policy != "Ignore"


def _consequences(webhooks: Sequence[Webhook]) -> str:
    """Return what happens to the objects that webhooks should be asked about."""
    asked: dict[bool, set[str]] = {}
    for webhook in webhooks:
        resources = {name for rule in webhook.rules for name in rule.resources}
        asked.setdefault(_refuses(webhook), set()).update(resources)
    words = []
    if True in asked:
        words.append(f"changes of {some_of(asked[True])} are refused (failurePolicy Fail)")
    if False in asked:
        words.append(f"{some_of(asked[False])} are neither mutated nor validated (failurePolicy Ignore)")
    return "; ".join(words)


def _troubles(snapshot: ClusterSnapshot, configuration: Object, webhook: Webhook) -> Iterator[_Trouble]:
    """Yield what keeps the API server from asking the webhook."""
    client, about = webhook.client_config, named(configuration)
    if client.service is not None and not client.url:
        problem, step = _service_problem(snapshot, client.service)
        if problem:
            yield _Trouble(about, webhook, problem, (step,))
    if client.url and snapshot.handshakes is not None:
        done = snapshot.handshakes.get(address(client.url))
        # From here an address of the cluster need not be reachable; that of a `koordinator up` is.
        if done is not None and done.problem and (done.reached or snapshot.installation.is_local):
            state = "its certificate is not trusted" if done.reached else "nobody answers"
            problem = f"{address(client.url)}: {state}: {done.problem}"
            yield _Trouble(about, webhook, problem, (_manager_log(snapshot),))
    ca = ca_of(webhook)
    secret = snapshot.webhook_secret
    if facts(ca) is None:
        state = "is not a certificate" if client.ca_bundle else "is empty"
        step = f"the manager fills it in once it runs: {_manager_log(snapshot)}"
        yield _Trouble(about, webhook, f"caBundle {state}, so the webhook server is not trusted", (step,))
    elif secret is not None and client.service is not None and not vouches(ca, _part(secret, "tls.crt")):
        problem = f"caBundle does not verify the certificate in {named(secret)}"
        step = f"the manager repairs it within a minute if it has the permission: {_manager_log(snapshot)}"
        yield _Trouble(about, webhook, problem, (step, "koordinator doctor --check access"))


def _manager_log(snapshot: ClusterSnapshot) -> str:
    return f"kubectl -n {snapshot.namespace} logs -l koord-app={ComponentName.MANAGER} --tail=50"


def _service_problem(snapshot: ClusterSnapshot, reference: ServiceReference) -> tuple[str, str]:
    """Return what is wrong behind a Service, and how to look at it; empty texts when nothing is."""
    where = f"{reference.namespace}/{reference.name}"
    if reference.namespace != snapshot.namespace:
        return (
            f"points to Service {where}, outside the namespace of the components",
            f"koordinator doctor --namespace {reference.namespace}    # if they are there",
        )
    service = snapshot.find(Service, reference.name, reference.namespace)
    if service is None:
        is_own = reference.name == shipped.WebhookService().name
        if not snapshot.knows(Service) or (
            is_own and snapshot.installation.is_in_process(ComponentName.MANAGER)
        ):
            return "", ""  # the API server of `koordinator up` finds its manager without one
        return f"points to Service {where}, which does not exist", "koordinator install --apply"
    port = reference.port or 443
    if port not in [each.port for each in service.spec.ports]:
        return (
            f"points to port {port} of Service {where}, which has no such port",
            f"kubectl -n {reference.namespace} describe service {reference.name}",
        )
    if not service.spec.selector or _has_ready_pod(snapshot, service):
        return "", ""
    return (
        f"points to Service {where}, which has no ready pod",
        f"kubectl -n {reference.namespace} get pods -l "
        + ",".join(f"{key}={value}" for key, value in sorted(service.spec.selector.items())),
    )


def _has_ready_pod(snapshot: ClusterSnapshot, service: Service) -> bool:
    wanted = service.spec.selector.items()
    return any(
        pod.metadata.namespace == service.metadata.namespace
        and wanted <= pod.metadata.labels.items()
        and is_condition_true(pod.status.conditions, "Ready")
        for pod in snapshot.of(Pod)
    )


def _part(secret: Secret, key: str) -> bytes:
    try:
        return base64.b64decode(secret.data.get(key, ""), validate=True)
    except (binascii.Error, ValueError):
        return b""


def _end(snapshot: ClusterSnapshot, about: str, what: str, end_s: float) -> Iterator[Finding]:
    days = (end_s - snapshot.now_s) / DAY_S
    if days < RENEWED_DAYS:
        state = f"expired {-days:.0f} days ago" if days < 0 else f"expires in {days:.0f} days"
        yield Finding.of(
            FindingSeverity.ERROR if days < 0 else FindingSeverity.WARNING,
            about,
            f"{what} {state}",
            why=f"the manager renews certificates {RENEWED_DAYS} days before they expire, so this renewal failed",
            do=(_manager_log(snapshot),),
        )


def _served_certificate(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Yield the certificate in the Secret: readable, for the Service's name, not at its end."""
    secret = snapshot.webhook_secret
    services = {
        f"{each.client_config.service.name}.{each.client_config.service.namespace}.svc"
        for _, each in snapshot.webhooks
        if each.client_config.service is not None
    }
    if secret is None:
        if services and snapshot.knows(Secret):
            yield Finding.error(
                f"Secret {snapshot.namespace}/{snapshot.installation.webhook_secret_name}",
                "missing",
                why="the manager has not created a certificate for its webhooks yet, or may not write it",
                do=(_manager_log(snapshot), "koordinator doctor --check access"),
            )
        return
    found = facts(_part(secret, "tls.crt"))
    renew = f"kubectl -n {secret.metadata.namespace} delete secret {secret.metadata.name}"
    if found is None:
        yield Finding.error(
            secret,
            "tls.crt is not a certificate",
            why="the webhook server cannot serve with it",
            do=(f"{renew}    # the manager creates a new one",),
        )
        return
    yield from _end(snapshot, named(secret), "tls.crt", found.not_after_s)
    for host in sorted(services):
        if not covers(found, host):
            yield Finding.error(
                secret,
                f"tls.crt is for {some_of(found.names) or 'no host'}, not for {host}",
                why="the API server refuses to connect to the webhook server",
                do=(f"{renew}    # the manager creates a new one",),
            )


def _risks(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Yield what a failure of all managers would stop."""
    if snapshot.installation.is_in_process(ComponentName.MANAGER):
        return  # it fails with the API server only
    pods = [
        (configuration, webhook)
        for configuration, webhook in snapshot.webhooks
        if _refuses(webhook) and any("pods" in rule.resources for rule in webhook.rules)
    ]
    if not pods:
        return
    configuration = pods[0][0]
    names = [webhook.name for _, webhook in pods]
    manager = snapshot.installation.get(ComponentName.MANAGER)
    if manager is not None and manager.wanted == 1:
        yield Finding.warning(
            manager.obj,
            "one replica, and failurePolicy Fail for pods",
            why="while that pod restarts or moves, no pod can be created",
            do=(
                f"kubectl -n {snapshot.namespace} scale deployment {manager.obj.metadata.name} --replicas=2",
                "or set failurePolicy of the pod webhooks to Ignore",
            ),
            objects=names,
        )
    for namespace in (snapshot.namespace, KUBE_SYSTEM):
        own = namespace == snapshot.namespace
        if not any(_selects(snapshot, webhook, namespace) for _, webhook in pods):
            continue
        yield Finding.of(
            FindingSeverity.ERROR if own else FindingSeverity.WARNING,
            configuration,
            f"failurePolicy Fail for pods of namespace {namespace}",
            why="once all managers are down, their own pods can no longer be created"
            if own
            else "once all managers are down, pods of the cluster's own components cannot be created",
            do=(
                f"kubectl label namespace {namespace} control-plane={namespace}"
                "    # namespaceSelector, as shipped, leaves such namespaces out",
            ),
            objects=names,
        )


def _selects(snapshot: ClusterSnapshot, webhook: Webhook, namespace: str) -> bool:
    labels = snapshot.namespace_labels.get(namespace)
    if labels is None:
        return False
    try:
        return webhook.namespace_selector is None or label_selector.matches(
            webhook.namespace_selector, labels
        )
    except ProtocolError:
        return False


class CertificateFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a PEM text: the end of the first certificate and of the last to end, and the names in the first."""

    not_after_s: float
    last_end_s: float
    names: tuple[str, ...] = ()


def facts(pem: bytes) -> CertificateFacts | None:
    """None when the text has no readable certificate."""
    found = _load(pem)
    if not found:
        return None
    ends_s = [each.not_valid_after_utc.timestamp() for each in found]
    return CertificateFacts(not_after_s=ends_s[0], last_end_s=max(ends_s), names=_names(found[0]))


def vouches(ca: bytes, certificate: bytes) -> bool:
    """Return whether the first certificate of `certificate` is signed by (or is) one of `ca`; both PEM."""
    served = _load(certificate)
    trusted = _load(ca)
    return bool(served) and (served[0] in trusted or is_signed_by_any(served[0], trusted))


def covers(found: CertificateFacts, host: str) -> bool:
    """Return whether the certificate is for that DNS name or address."""
    wildcard = "*." + host.partition(".")[2]
    return host in found.names or wildcard in found.names


def _load(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        return []


def _names(found: x509.Certificate) -> tuple[str, ...]:
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return ()
    addresses = [str(each) for each in names.get_values_for_type(x509.IPAddress)]
    return (*names.get_values_for_type(x509.DNSName), *addresses)


def check_admission(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Yield what became of a good batch pod (must come back with its annotation) and of one against the rules."""
    tried = snapshot.admission
    if tried is None:
        return
    about = f"pods of namespace {tried.namespace}"
    yield from _unreachable_in_trial(snapshot, tried, about)
    for trial in (tried.good, tried.bad):
        if trial.outcome is TrialOutcome.NOT_ALLOWED:
            yield Finding.notice(
                about,
                f"not tried: {trial.message}",
                do=("ask a user who may create pods to run: koordinator doctor --check admission",),
            )
            return
    if tried.good.outcome is TrialOutcome.REFUSED:
        severity = (
            FindingSeverity.ERROR if tried.good.webhook.endswith(WEBHOOK_SUFFIX) else FindingSeverity.WARNING
        )
        yield Finding.of(
            severity,
            about,
            f"a correct batch pod is refused: {tried.good.message}",
            why="no batch pod can be created there",
            do=("koordinator doctor --check profiles --check webhooks",),
        )
    if tried.good.outcome is TrialOutcome.CREATED:
        yield from _unchanged(snapshot, tried.good, about)
    # A webhook that is not configured is told by `check`.
    if tried.bad.outcome is TrialOutcome.CREATED and table.VALIDATE_POD in snapshot.webhook_paths:
        yield Finding.error(
            about,
            "a pod that breaks the rules (batch resources without QoS BE) is accepted",
            why="the validating webhook is not called, or does not answer and its failurePolicy is Ignore",
            do=_steps(snapshot),
        )


def _unchanged(snapshot: ClusterSnapshot, trial: AdmissionTrial, about: str) -> Iterator[Finding]:
    annotations = (trial.pod.get("metadata") or {}).get("annotations") or {}
    if labels.EXTENDED_RESOURCE_SPEC in annotations or table.MUTATE_POD not in snapshot.webhook_paths:
        return
    if snapshot.installation.manager_gate("DisableExtendedResourceSpec"):
        return
    yield Finding.error(
        about,
        f"a batch pod does not get annotation {labels.EXTENDED_RESOURCE_SPEC}",
        why="the mutating webhook is not called, or does not answer and its failurePolicy is Ignore: profiles "
        "do nothing, and the node agent cannot limit batch pods",
        do=_steps(snapshot),
    )


def _unreachable_in_trial(snapshot: ClusterSnapshot, tried: AdmissionTest, about: str) -> Iterator[Finding]:
    for webhook in sorted(
        {t.webhook for t in (tried.good, tried.bad) if t.outcome is TrialOutcome.UNREACHABLE}
    ):
        trial = tried.good if tried.good.webhook == webhook else tried.bad
        ours = not webhook or webhook.endswith(WEBHOOK_SUFFIX)
        yield Finding.error(
            about,
            f"webhook {webhook} cannot be called: {trial.message}"
            if webhook
            else f"the API server does not answer requests to create a pod: {trial.message}",
            why="no pod can be created there while its failurePolicy is Fail"
            if webhook
            else "a webhook that hangs delays every creation by its timeoutSeconds",
            do=_steps(snapshot) if ours else (f"{webhook} is not Koordinator's; ask its owner",),
        )


def _steps(snapshot: ClusterSnapshot) -> tuple[str, ...]:
    return (
        "koordinator doctor --check webhooks --check components",
        _manager_log(snapshot),
    )
