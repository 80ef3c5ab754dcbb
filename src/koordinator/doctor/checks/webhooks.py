"""Are our webhooks configured, does somebody answer behind each, and is its certificate the trusted one?"""

import base64
import binascii
from collections.abc import Iterator

from koordinator.api import label_selector
from koordinator.api.admission import MutatingWebhookConfiguration, ServiceReference, Webhook
from koordinator.api.core import Pod, Secret, Service
from koordinator.api.errors import ProtocolError
from koordinator.api.meta import Object
from koordinator.doctor import certificate
from koordinator.doctor.finding import Finding, Severity, finding, name_of, some_of
from koordinator.doctor.gather import ca_of
from koordinator.doctor.handshake import address
from koordinator.doctor.installation import Name
from koordinator.doctor.snapshot import Snapshot
from koordinator.manager.webhooks import table

RENEWED_DAYS = 183
"""The manager renews half a year before the end, so less means that it does not."""
DAY_S = 86_400.0
KUBE_SYSTEM = "kube-system"

LOSSES = {
    table.MUTATE_POD: "profiles are not applied to new pods",
    table.VALIDATE_POD: "pods that break the rules of QoS and priority are accepted",
    table.MUTATE_QUOTA: "new quotas get no parent and no shared weight",
    table.VALIDATE_QUOTA: "quotas that do not fit each other are accepted",
}
"""What is lost without the webhooks that are on by default."""


def check(snapshot: Snapshot) -> Iterator[Finding]:
    """Missing webhooks; endpoints, certificates and failure policies of those that are there."""
    yield from _missing(snapshot)
    told: set[tuple[str, str]] = set()
    for configuration, webhook in snapshot.webhooks:
        for each in (
            *_endpoint(snapshot, configuration, webhook),
            *_trust(snapshot, configuration, webhook),
            *_risk(snapshot, configuration, webhook),
        ):
            # The webhooks of a configuration share their server: what is wrong with it is told once.
            if (each.object, each.problem) not in told:
                told.add((each.object, each.problem))
                yield each
    yield from _served_certificate(snapshot)


def _missing(snapshot: Snapshot) -> Iterator[Finding]:
    if snapshot.installation.manager_gate(table.FRAMEWORK_GATE) is False:
        yield finding(
            Severity.NOTICE,
            "webhooks",
            "switched off by feature gate WebhookFramework",
            why="pods and quotas are neither changed nor checked",
        )
        return
    for path, loss in LOSSES.items():
        is_off = any(snapshot.installation.manager_gate(gate) is False for gate in table.GATES_BY_PATH[path])
        if path not in snapshot.webhook_paths and not is_off:
            yield finding(
                Severity.ERROR,
                f"webhook {path}",
                "not configured",
                why=loss,
                do=(
                    _manager_log(snapshot) + "    # the manager adds its webhooks once it answers",
                    "koordinator install --apply    # if the webhook configurations are missing altogether",
                ),
            )


def _refuses(webhook: Webhook) -> bool:
    """Whether requests are refused while the webhook does not answer (which is the API server's default)."""
    return webhook.failure_policy != "Ignore"


def _asked(webhook: Webhook) -> str:
    return some_of({name for rule in webhook.rules for name in rule.resources}) or "objects"


def _consequence(webhook: Webhook) -> str:
    if _refuses(webhook):
        return f"failurePolicy Fail: every change of {_asked(webhook)} that it is asked about is refused"
    return f"failurePolicy Ignore: {_asked(webhook)} pass unchanged and unchecked"


def _endpoint(snapshot: Snapshot, configuration: Object, webhook: Webhook) -> Iterator[Finding]:
    client = webhook.client_config
    severity = Severity.ERROR if _refuses(webhook) else Severity.WARNING
    if client.service is not None and not client.url:
        problem, step = _service_problem(snapshot, client.service)
        if problem:
            yield finding(
                severity,
                configuration,
                f"{webhook.name}: {problem}",
                why=_consequence(webhook),
                do=(step,),
            )
    if client.url and snapshot.handshakes is not None:
        done = snapshot.handshakes.get(address(client.url))
        if done is not None and done.problem and (done.reached or snapshot.installation.is_local):
            state = "its certificate is not trusted" if done.reached else "nobody answers"
            yield finding(
                severity,
                configuration,
                f"{address(client.url)}: {state}: {done.problem}",
                why=_consequence(webhook),
                do=(_manager_log(snapshot),),
            )


def _manager_log(snapshot: Snapshot) -> str:
    return f"kubectl -n {snapshot.namespace} logs -l koord-app={Name.MANAGER} --tail=50"


def _service_problem(snapshot: Snapshot, reference: ServiceReference) -> tuple[str, str]:
    """What is wrong behind a Service, and how to look at it; empty texts when nothing is."""
    where = f"{reference.namespace}/{reference.name}"
    if reference.namespace != snapshot.namespace:
        return (
            f"points to Service {where}, outside of the namespace of the components",
            f"koordinator doctor --namespace {reference.namespace}    # if they are there",
        )
    service = snapshot.find(Service, reference.name, reference.namespace)
    if service is None:
        if not snapshot.knows(Service):
            return "", ""
        return f"points to Service {where}, which does not exist", "koordinator install --apply"
    port = reference.port or 443
    if port not in [each.port for each in service.spec.ports]:
        return (
            f"points to port {port} of Service {where}, which has none such",
            f"kubectl -n {reference.namespace} describe service {reference.name}",
        )
    if not service.spec.selector or _ready_pods(snapshot, service):
        return "", ""
    return (
        f"points to Service {where}, behind which no pod is ready",
        f"kubectl -n {reference.namespace} get pods -l "
        + ",".join(f"{key}={value}" for key, value in sorted(service.spec.selector.items())),
    )


def _ready_pods(snapshot: Snapshot, service: Service) -> int:
    wanted = service.spec.selector.items()
    return sum(
        pod.metadata.namespace == service.metadata.namespace
        and wanted <= pod.metadata.labels.items()
        and any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions)
        for pod in snapshot.of(Pod)
    )


def _trust(snapshot: Snapshot, configuration: Object, webhook: Webhook) -> Iterator[Finding]:
    """The caBundle: there, readable, not at its end, and that of the Secret."""
    ca = ca_of(webhook)
    found = certificate.facts(ca)
    severity = Severity.ERROR if _refuses(webhook) else Severity.WARNING
    if found is None:
        problem = "caBundle is no certificate" if webhook.client_config.ca_bundle else "caBundle is empty"
        yield finding(
            severity,
            configuration,
            f"{problem}: the API server cannot trust the webhook server",
            why=_consequence(webhook),
            do=(f"the manager fills it in once it runs: {_manager_log(snapshot)}",),
        )
        return
    yield from _end(snapshot, name_of(configuration), "caBundle", found)
    secret = snapshot.webhook_secret
    if secret is None or webhook.client_config.service is None:
        return
    if not certificate.vouches(ca, _part(secret, "tls.crt")):
        yield finding(
            severity,
            configuration,
            f"caBundle does not vouch for the certificate in {name_of(secret)}",
            why=_consequence(webhook),
            do=(
                f"the manager mends it within a minute if it may: {_manager_log(snapshot)}",
                "koordinator doctor --check access",
            ),
        )


def _part(secret: Secret, key: str) -> bytes:
    try:
        return base64.b64decode(secret.data.get(key, ""), validate=True)
    except (binascii.Error, ValueError):
        return b""


def _end(snapshot: Snapshot, about: str, what: str, found: certificate.CertificateFacts) -> Iterator[Finding]:
    days = (found.not_after_s - snapshot.now_s) / DAY_S
    if days < RENEWED_DAYS:
        state = f"ended {-days:.0f} days ago" if days < 0 else f"ends in {days:.0f} days"
        yield finding(
            Severity.ERROR if days < 0 else Severity.WARNING,
            about,
            f"{what} {state}",
            why=f"the manager renews certificates {RENEWED_DAYS} days before their end, so it did not get to it",
            do=(_manager_log(snapshot),),
        )


def _served_certificate(snapshot: Snapshot) -> Iterator[Finding]:
    """The certificate in the Secret: readable, for the Service's name, not at its end."""
    secret = snapshot.webhook_secret
    services = {
        f"{each.client_config.service.name}.{each.client_config.service.namespace}.svc"
        for _, each in snapshot.webhooks
        if each.client_config.service is not None
    }
    if secret is None:
        if services and snapshot.knows(Secret):
            yield finding(
                Severity.ERROR,
                f"Secret {snapshot.namespace}/{snapshot.installation.webhook_secret_name}",
                "missing",
                why="the manager has made no certificate for its webhooks yet, or may not write it",
                do=(_manager_log(snapshot), "koordinator doctor --check access"),
            )
        return
    found = certificate.facts(_part(secret, "tls.crt"))
    renew = f"kubectl -n {secret.metadata.namespace} delete secret {secret.metadata.name}"
    if found is None:
        yield finding(
            Severity.ERROR,
            secret,
            "tls.crt is no certificate",
            why="the webhook server cannot serve with it",
            do=(f"{renew}    # the manager makes a new one",),
        )
        return
    yield from _end(snapshot, name_of(secret), "tls.crt", found)
    for host in sorted(services):
        if not certificate.covers(found, host):
            yield finding(
                Severity.ERROR,
                secret,
                f"tls.crt is for {some_of(found.names) or 'nobody'}, not for {host}",
                why="the API server refuses to speak to the webhook server",
                do=(f"{renew}    # the manager makes a new one",),
            )


def _risk(snapshot: Snapshot, configuration: Object, webhook: Webhook) -> Iterator[Finding]:
    """What a failure of the manager would stop."""
    concerns_pods = any("pods" in rule.resources for rule in webhook.rules)
    if not _refuses(webhook) or not concerns_pods or snapshot.installation.is_in_process(Name.MANAGER):
        return
    manager = snapshot.installation.get(Name.MANAGER)
    if manager is not None and manager.wanted == 1:
        yield finding(
            Severity.WARNING,
            configuration,
            f"failurePolicy Fail for pods, and {manager.obj.key} has one replica",
            why="while that pod restarts or moves, no pod can be created",
            do=(
                f"kubectl -n {snapshot.namespace} scale deployment {manager.obj.metadata.name} --replicas=2",
                "or set failurePolicy of the pod webhooks to Ignore",
            ),
        )
    reached = [name for name in (snapshot.namespace, KUBE_SYSTEM) if _selects(snapshot, webhook, name)]
    if reached:
        mutating = isinstance(configuration, MutatingWebhookConfiguration)
        own = snapshot.namespace in reached
        yield finding(
            Severity.ERROR if own else Severity.WARNING,
            configuration,
            f"failurePolicy Fail for pods of namespace {' and '.join(reached)}",
            why="once all managers are down, their own pods cannot be created any more"
            if own
            else "once all managers are down, pods of the cluster's own components cannot be created",
            do=(
                f"kubectl label namespace {reached[0]} control-plane={reached[0]}"
                "    # the selectors, as shipped, leave such namespaces out",
                f"or exclude it in namespaceSelector of {'mutating' if mutating else 'validating'} webhook "
                f"{webhook.name}",
            ),
        )


def _selects(snapshot: Snapshot, webhook: Webhook, namespace: str) -> bool:
    labels = snapshot.namespace_labels.get(namespace)
    if labels is None:
        return False
    try:
        return webhook.namespace_selector is None or label_selector.matches(
            webhook.namespace_selector, labels
        )
    except ProtocolError:
        return False
