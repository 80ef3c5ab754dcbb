"""Are pods really changed and checked when they are created? Two trial pods tell."""

from collections.abc import Iterator

from koordinator.api import labels
from koordinator.doctor.finding import Finding, FindingSeverity
from koordinator.doctor.inquiries import AdmissionTest, AdmissionTrial, TrialOutcome
from koordinator.doctor.installation import ComponentName
from koordinator.doctor.snapshot import ClusterSnapshot
from koordinator.manager.webhooks import table

OURS = ".koordinator.sh"


def check(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Yield what became of a good batch pod (must come back with its annotation) and of one against the rules."""
    tried = snapshot.admission
    if tried is None:
        return
    about = f"pods of namespace {tried.namespace}"
    yield from _unreachable(snapshot, tried, about)
    for trial in (tried.good, tried.bad):
        if trial.outcome is TrialOutcome.NOT_ALLOWED:
            yield Finding.notice(
                about,
                f"not tried: {trial.message}",
                do=("ask somebody who may create pods to run: koordinator doctor --check admission",),
            )
            return
    if tried.good.outcome is TrialOutcome.REFUSED:
        severity = FindingSeverity.ERROR if tried.good.webhook.endswith(OURS) else FindingSeverity.WARNING
        yield Finding.of(
            severity,
            about,
            f"a correct batch pod is refused: {tried.good.message}",
            why="no batch pod can be created there",
            do=("koordinator doctor --check profiles --check webhooks",),
        )
    if tried.good.outcome is TrialOutcome.CREATED:
        yield from _unchanged(snapshot, tried.good, about)
    if tried.bad.outcome is TrialOutcome.CREATED and _expects(snapshot, table.VALIDATE_POD):
        yield Finding.error(
            about,
            "a pod that breaks the rules (batch resources without QoS BE) is accepted",
            why="the validating webhook is not asked, or does not answer and its failurePolicy is Ignore",
            do=_steps(snapshot),
        )


def _expects(snapshot: ClusterSnapshot, path: str) -> bool:
    """Return whether the webhook is configured; when it is missing, the check `webhooks` says so."""
    return path in snapshot.webhook_paths


def _unchanged(snapshot: ClusterSnapshot, trial: AdmissionTrial, about: str) -> Iterator[Finding]:
    annotations = (trial.pod.get("metadata") or {}).get("annotations") or {}
    if labels.EXTENDED_RESOURCE_SPEC in annotations:
        return
    if not _expects(snapshot, table.MUTATE_POD):
        return
    if snapshot.installation.manager_gate("DisableExtendedResourceSpec"):
        return
    yield Finding.error(
        about,
        f"a batch pod does not get annotation {labels.EXTENDED_RESOURCE_SPEC}",
        why="the mutating webhook is not asked, or does not answer and its failurePolicy is Ignore: profiles "
        "do nothing, and the node agent cannot limit batch pods",
        do=_steps(snapshot),
    )


def _unreachable(snapshot: ClusterSnapshot, tried: AdmissionTest, about: str) -> Iterator[Finding]:
    for webhook in sorted(
        {t.webhook for t in (tried.good, tried.bad) if t.outcome is TrialOutcome.UNREACHABLE}
    ):
        trial = tried.good if tried.good.webhook == webhook else tried.bad
        ours = not webhook or webhook.endswith(OURS)
        yield Finding.error(
            about,
            f"webhook {webhook} cannot be called: {trial.message}"
            if webhook
            else f"the API server does not answer when a pod is created: {trial.message}",
            why="no pod can be created there while its failurePolicy is Fail"
            if webhook
            else "a webhook that hangs holds every creation up for its timeoutSeconds",
            do=_steps(snapshot) if ours else (f"it is not ours; see who installed {webhook}",),
        )


def _steps(snapshot: ClusterSnapshot) -> tuple[str, ...]:
    return (
        "koordinator doctor --check webhooks --check components",
        f"kubectl -n {snapshot.namespace} logs -l koord-app={ComponentName.MANAGER} --tail=50",
    )
