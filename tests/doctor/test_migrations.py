"""Migration jobs that nobody carries out, that fail again and again, and a configuration that cannot be read."""

from typing import Any

from koordinator.api.core import ConfigMap
from koordinator.api.groups import Lease
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.install import configs
from tests.doctor.builders import NAMESPACE, at, decoded, findings, healthy, lease, only, snapshot


def job(name: str, phase: str = "", reason: str = "") -> PodMigrationJob:
    status = {"phase": phase, "reason": reason, "message": f"because of {reason}"}
    return decoded(PodMigrationJob, {"status": status}, name=name)


def test_jobs_that_nobody_carries_out_are_told_until_a_descheduler_leads() -> None:
    objects = healthy()
    objects[PodMigrationJob] = [job("a"), job("b", "Running"), job("c", "Succeeded")]
    assert only("migrations", snapshot(objects)).objects == ("a", "b")

    objects[Lease] = [*objects[Lease], lease("koord-descheduler", "us")]
    assert not findings("migrations", snapshot(objects))


def test_a_job_that_was_just_made_is_no_trouble() -> None:
    objects = healthy()
    young: dict[str, Any] = {"metadata": {"creationTimestamp": at(5)}}
    objects[PodMigrationJob] = [decoded(PodMigrationJob, young, name="a")]
    assert not findings("migrations", snapshot(objects))


def test_jobs_that_fail_alike_are_told_with_the_last_message() -> None:
    objects = healthy()
    objects[PodMigrationJob] = [job(name, "Failed", "Timeout") for name in "abc"] + [job("d", "Failed", "X")]
    found = only("migrations", snapshot(objects))
    assert (found.object, found.problem) == (
        "3 PodMigrationJobs",
        "failed with Timeout: because of Timeout",
    )


def test_a_configuration_that_the_descheduler_would_refuse_is_an_error_with_all_problems() -> None:
    name = configs.DESCHEDULER_CONFIG
    text = "apiVersion: descheduler/v1alpha2\nkind: DeschedulerConfiguration\ndryrun: yes\ninterval: 5s\n"
    objects = healthy()
    broken = decoded(ConfigMap, {"data": {name: text}}, name=name, namespace=NAMESPACE)
    objects[ConfigMap] = [*objects[ConfigMap], broken]
    problem = only("migrations", snapshot(objects)).problem
    assert 'dryrun: unknown field "dryrun" (did you mean "dryRun"?)' in problem
    assert "interval: unknown field" in problem
