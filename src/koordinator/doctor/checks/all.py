"""All checks by name, in the order in which they are reported, and how to run them."""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from koordinator.api.admission import MutatingWebhookConfiguration, ValidatingWebhookConfiguration
from koordinator.api.apps import Deployment
from koordinator.api.core import ConfigMap, Node, Pod
from koordinator.api.errors import KoordinatorError
from koordinator.api.groups import ClusterColocationProfile, Lease, PriorityClass
from koordinator.api.meta import Object
from koordinator.api.network_topology import ClusterNetworkTopology
from koordinator.api.node_metric import NodeMetric
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.api.reservation import Reservation
from koordinator.api.sigs import ElasticQuota, PodGroup
from koordinator.api.tidal_pool import TidalPool
from koordinator.doctor.checks import (
    api_server,
    components,
    config,
    features,
    gangs,
    leftovers,
    migrations,
    pods,
    profiles,
    quotas,
    reports,
    reservations,
    runtimes,
    tidal,
    topology,
    webhooks,
    yarn,
)
from koordinator.doctor.finding import Finding, FindingSeverity, some_of
from koordinator.doctor.snapshot import NOT_SERVED, ClusterSnapshot, RawDefinition


class Check(msgspec.Struct, frozen=True):
    """A check. `needs` are the kinds without which it can say nothing; `was_asked` tells whether what only a running
    cluster can answer is there."""

    name: str
    question: str
    run: Callable[[ClusterSnapshot], Iterable[Finding]]
    needs: tuple[type[Object], ...] = ()
    was_asked: Callable[[ClusterSnapshot], bool] = lambda _: True


_CONFIGURATIONS = (MutatingWebhookConfiguration, ValidatingWebhookConfiguration)
_NETWORK = (ClusterNetworkTopology, Node)

CHECKS: tuple[Check, ...] = (
    Check(
        "api-server",
        "is the API server new enough?",
        api_server.check_version,
        (),
        lambda found: found.is_live,
    ),
    Check("crds", "are all CRDs installed?", api_server.check_crds, (RawDefinition,)),
    Check("components", "do all components run, in the same version?", components.check, (Deployment,)),
    Check("leases", "does exactly one instance lead?", components.check_leases, (Lease,)),
    Check(
        "access",
        "do the components have the permissions that they need?",
        api_server.check_access,
        (),
        lambda found: found.access is not None,
    ),
    Check("webhooks", "are the webhooks configured, reachable and trusted?", webhooks.check, _CONFIGURATIONS),
    Check(
        "admission",
        "are new pods really mutated and validated?",
        webhooks.check_admission,
        (),
        lambda found: found.admission is not None,
    ),
    Check("config", "is slo-controller-config valid and sensible?", config.check, (ConfigMap,)),
    Check(
        "features",
        "are the feature gates and webhooks of configured features on?",
        features.check,
        _CONFIGURATIONS,
    ),
    Check("runtimes", "do containers start with their limits?", runtimes.check, (Node, Pod, NodeMetric)),
    Check("isolation", "do the mechanisms work on which isolation rests?", runtimes.check_isolation, (Node,)),
    Check("reports", "do all nodes send plausible reports?", reports.check, (Node, NodeMetric)),
    Check(
        "batch",
        "do nodes offer the batch resources that they should?",
        reports.check_lending,
        (Node, NodeMetric),
    ),
    Check(
        "priority-classes",
        "do the four priority classes exist?",
        profiles.check_priority_classes,
        (PriorityClass,),
    ),
    Check(
        "profiles",
        "do profiles match pods, name existing objects, and not contradict each other?",
        profiles.check,
        (ClusterColocationProfile,),
    ),
    Check("pods", "do pods follow the rules and request existing resources?", pods.check, (Pod,)),
    Check("schedulers", "does each pending pod have a scheduler?", pods.check_schedulers, (Pod,)),
    Check("gangs", "are gangs complete and consistent?", gangs.check, (Pod, PodGroup)),
    Check("topology", "is the network topology a tree that contains the nodes?", topology.check, _NETWORK),
    Check("quotas", "are quotas consistent?", quotas.check, (ElasticQuota,)),
    Check(
        "reservations",
        "do reservations get a node, users and an end?",
        reservations.check,
        (Pod, Reservation),
    ),
    Check(
        "migrations",
        "does a descheduler carry out migration jobs, and do these succeed?",
        migrations.check,
        (PodMigrationJob, Lease),
    ),
    Check(
        "yarn-operator",
        "is batch capacity shared with YARN where NodeManagers run?",
        yarn.check_operator,
        (Pod, Node, Lease),
    ),
    Check(
        "tidal-pools",
        "can tidal pools lend the nodes that they should?",
        tidal.check,
        (TidalPool, Node, Lease),
    ),
    Check("yarn", "do nodes with NodeManagers know of YARN's containers?", yarn.check, (Pod,)),
    Check(
        "unready", "do objects use features that are not implemented yet?", leftovers.check_unready, (Pod,)
    ),
    Check("predecessor", "do components of the Go project still run?", leftovers.check_predecessor, ()),
    Check("leftovers", "are there objects of deleted nodes?", leftovers.check_nodes, (Node,)),
)
BY_NAME = {check.name: check for check in CHECKS}


class DoctorReport(msgspec.Struct, frozen=True):
    """The findings of all checks, worst first; `passed` and `not_done` are names of checks."""

    findings: Sequence[Finding]
    passed: Sequence[str]
    not_done: Sequence[str]

    def count(self, severity: FindingSeverity) -> int:
        """Return the number of findings of a severity."""
        return sum(each.severity is severity for each in self.findings)


def examine(snapshot: ClusterSnapshot, names: Iterable[str] = ()) -> DoctorReport:
    """Run the named checks, or all."""
    chosen = [BY_NAME[name] for name in names] or list(CHECKS)
    findings: list[Finding] = []
    passed: list[str] = []
    blocked: dict[type[Object], list[str]] = {}
    not_done = {check.name for check in chosen if not check.was_asked(snapshot)}
    for check in chosen:
        gaps = [view for view in check.needs if not snapshot.knows(view)]
        for view in gaps:
            blocked.setdefault(view, []).append(check.name)
        if gaps or check.name in not_done:
            continue
        found = _run(check, snapshot)
        findings += found
        if not found:
            passed.append(check.name)
    findings += _gaps(snapshot, blocked)
    findings += _unreadable(snapshot)
    not_done.update(*blocked.values())
    return DoctorReport(sorted(findings, key=lambda each: each.order), passed, sorted(not_done))


def _run(check: Check, snapshot: ClusterSnapshot) -> list[Finding]:
    """Return the check's findings; an object that it cannot decode becomes a finding."""
    found: list[Finding] = []
    try:
        for each in check.run(snapshot):
            found.append(msgspec.structs.replace(each, check=check.name))
    except KoordinatorError as error:
        broken = Finding.warning("check", f"not finished: {error}")
        found.append(msgspec.structs.replace(broken, check=check.name))
    return found


def _gaps(snapshot: ClusterSnapshot, blocked: dict[type[Object], list[str]]) -> list[Finding]:
    """Return what could not be read, and is missed. A kind that is not served has a finding of its own."""
    missed = {view: names for view, names in blocked.items() if snapshot.gap(view) != NOT_SERVED}
    if not missed:
        return []
    if not snapshot.is_live:
        kinds = sorted(view.resource.plural for view in missed)
        about = kinds[0] if len(kinds) == 1 else f"{len(kinds)} kinds"
        checks = sorted({name for names in missed.values() for name in names})
        return [
            Finding.notice(
                about,
                f"the dump has none of: {', '.join(kinds)}",
                why=f"not checked: {', '.join(checks)}",
                do=(f"kubectl get {','.join(kinds)} -A -o json > more.json    # then --dump more.json, too",),
            )
        ]
    return [
        Finding.notice(
            view.resource.qualified,
            f"not read: {snapshot.gap(view)}",
            why=f"not checked: {', '.join(names)}",
            do=(f"kubectl auth can-i list {view.resource.qualified} -A",),
        )
        for view, names in missed.items()
    ]


def _unreadable(snapshot: ClusterSnapshot) -> list[Finding]:
    return [
        Finding.warning(
            view.resource.qualified,
            f"malformed objects: {some_of(keys)}",
            why="components skip them",
            do=(
                f"kubectl get {view.resource.qualified} -A -o yaml    # see the log of koord-manager for the field",
            ),
            objects=keys,
        )
        for view in snapshot.listings
        if (keys := snapshot.unreadable(view))
    ]
