"""Is there anything of the original Koordinator, the Go project, that ours would fight with?"""

from collections.abc import Iterator

from koordinator.api.admission import MutatingWebhookConfiguration, ValidatingWebhookConfiguration
from koordinator.api.apps import DaemonSet, Deployment
from koordinator.doctor.finding import Finding, Severity, finding
from koordinator.doctor.snapshot import Snapshot
from koordinator.install.objects import PART_OF, PART_OF_VALUE
from koordinator.install.predecessor import DOCUMENT, Relic, component_of, is_of_go
from koordinator.install.workloads import APP_LABEL


def check(snapshot: Snapshot) -> Iterator[Finding]:
    """Workloads beside ours are an error; alone they are a switch under way. Webhooks that fail closed refuse."""
    workloads = [*snapshot.of(Deployment), *snapshot.of(DaemonSet)]
    ours = {
        each.metadata.labels.get(APP_LABEL, each.metadata.name)
        for each in workloads
        if each.metadata.labels.get(PART_OF) == PART_OF_VALUE
    }
    for each in workloads:
        meta = each.metadata
        component = component_of(meta.name, meta.labels)
        if not component:
            continue
        relic = Relic(each.resource.kind, meta.namespace, meta.name, component)
        is_double = component in ours
        yield finding(
            Severity.ERROR if is_double else Severity.NOTICE,
            each,
            "is the Go project's" + (", beside ours" if is_double else ""),
            why=relic.why if is_double else "this component has not been switched yet",
            do=(relic.removal, f"{DOCUMENT} has the order, and the way back"),
        )
    configurations: list[MutatingWebhookConfiguration | ValidatingWebhookConfiguration] = [
        *snapshot.of(MutatingWebhookConfiguration),
        *snapshot.of(ValidatingWebhookConfiguration),
    ]
    for configuration in configurations:
        meta, webhooks = configuration.metadata, configuration.webhooks
        if not is_of_go(meta.name, meta.labels, (each.name for each in webhooks)):
            continue
        closed = [each.name for each in webhooks if each.failure_policy != "Ignore"]
        yield finding(
            Severity.ERROR if closed else Severity.WARNING,
            configuration,
            "is the Go project's, and ours does not take it over",
            why=f"{len(closed)} of its webhooks refuse objects when nobody answers"
            if closed
            else "objects are changed by two managers",
            do=(f"kubectl delete {configuration.resource.kind.lower()} {meta.name}", DOCUMENT),
            objects=closed,
        )
