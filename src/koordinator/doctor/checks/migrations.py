"""Can pods be moved: does a descheduler run where jobs wait for one, is its configuration valid, why do jobs fail?"""

from collections import defaultdict
from collections.abc import Iterator

from koordinator.api.core import ConfigMap
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.descheduler import configuration
from koordinator.descheduler.configuration import DeschedulerConfigError
from koordinator.descheduler.migration import jobs
from koordinator.descheduler.plugins.built_in import installed_plugins
from koordinator.doctor.checks.components import leads
from koordinator.doctor.finding import Finding, edit
from koordinator.doctor.installation import ComponentName
from koordinator.doctor.snapshot import ClusterSnapshot
from koordinator.install.configs import DESCHEDULER_CONFIG

WAIT_S = 60.0
"""A job that is younger may be about to be looked at."""
FAILURES_MIN = 3
"""So many jobs that failed alike are more than an accident."""


def check(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Yield the descheduler, its configuration, then jobs."""
    yield from _config(snapshot)
    yield from _waiting(snapshot)
    yield from _failed(snapshot)


def _config(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    found = snapshot.find(ConfigMap, DESCHEDULER_CONFIG, snapshot.namespace)
    text = found.data.get(DESCHEDULER_CONFIG) if found is not None else None
    if found is None or text is None:
        return
    try:
        configuration.parse(text, installed_plugins())
    except DeschedulerConfigError as error:
        yield Finding.error(
            found,
            "; ".join(map(str, error.problems)),
            why="a descheduler that starts with it ends at once; one that runs goes on with the former one",
            do=(edit(found),),
        )


def _waiting(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Jobs that nobody carries out."""
    if leads(snapshot, ComponentName.DESCHEDULER):
        return
    names = [
        job.metadata.name
        for job in snapshot.of(PodMigrationJob)
        if jobs.is_open(job) and snapshot.age_s(job) > WAIT_S
    ]
    if names:
        yield Finding.warning(
            ("PodMigrationJob", names),
            "no descheduler leads, so nobody carries it out"
            if len(names) == 1
            else "no descheduler leads, so nobody carries them out",
            why="the pods stay where they are",
            do=("koordinator install --apply --set descheduler.enabled=true",),
        )


def _failed(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Jobs that failed for the same reason."""
    by_reason: defaultdict[str, list[PodMigrationJob]] = defaultdict(list)
    for job in snapshot.of(PodMigrationJob):
        if job.status.phase == jobs.FAILED:
            by_reason[job.status.reason].append(job)
    for reason, failed in sorted(by_reason.items()):
        if len(failed) >= FAILURES_MIN:
            last = max(failed, key=lambda job: job.metadata.creation_timestamp or "")
            yield Finding.warning(
                ("PodMigrationJob", [job.metadata.name for job in failed]),
                f"failed with {reason}: {last.status.message}",
                why="the pods stay where they are, and plugins ask for them again in the next cycle",
                do=(f"koordinator explain eviction job {last.metadata.name}",),
            )
