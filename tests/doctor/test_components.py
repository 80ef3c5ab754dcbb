"""Checks of what an installation consists of: API server, CRDs, workloads, leases, priority classes."""

import msgspec
import pytest

from koordinator.api.apps import DaemonSet, Deployment
from koordinator.api.core import Pod
from koordinator.api.groups import Lease, PriorityClass
from koordinator.doctor.checks.all import CHECKS, examine
from koordinator.doctor.finding import FindingSeverity
from koordinator.doctor.snapshot import Listing, RawDefinition
from tests.doctor import builders
from tests.doctor.builders import findings, healthy, only, snapshot


def test_a_healthy_installation_has_no_findings() -> None:
    report = examine(snapshot())

    assert list(report.findings) == []
    assert list(report.passed) == [check.name for check in CHECKS]


@pytest.mark.parametrize(
    ("version", "is_old"),
    [("v1.21.9", True), ("v1.22.0", False), ("v1.32.0+k3s1", False), ("v2.0.0", False), ("strange", False)],
)
def test_an_api_server_without_policy_v1_is_too_old(version: str, is_old: bool) -> None:
    assert bool(findings("api-server", snapshot(server_version=version))) is is_old


def test_a_missing_crd_is_named_with_the_command_that_brings_it() -> None:
    objects = healthy()
    objects[RawDefinition] = [
        each for each in objects[RawDefinition] if each.metadata.name != "nodeslos.slo.koordinator.sh"
    ]

    found = only("crds", snapshot(objects))

    assert found.severity is FindingSeverity.ERROR
    assert found.object == "CustomResourceDefinition nodeslos.slo.koordinator.sh"
    assert found.remedy == (
        "koordinator crds nodeslos.slo.koordinator.sh | kubectl apply --server-side -f -",
    )


def test_a_crd_of_an_older_version_tells_which_members_it_lacks() -> None:
    objects = healthy()
    old = next(
        each for each in objects[RawDefinition] if each.metadata.name == "nodemetrics.slo.koordinator.sh"
    )
    schema = old.spec["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["status"]["properties"]["prodReclaimableMetric"]

    found = only("crds", snapshot(objects))

    assert found.severity is FindingSeverity.WARNING
    assert "status.prodReclaimableMetric" in found.problem


def test_a_crd_that_is_not_established_or_serves_another_version_is_an_error() -> None:
    objects = healthy()
    refused, other, *rest = objects[RawDefinition]
    conditions = [{"type": "NamesAccepted", "status": "False", "message": "the plural is taken"}]
    refused = msgspec.structs.replace(refused, status={"conditions": conditions})
    other.spec["versions"][0]["name"] = "v9"
    objects[RawDefinition] = [refused, other, *rest]

    first, second = findings("crds", snapshot(objects))

    assert "the plural is taken" in first.problem + second.problem
    assert "v9" in first.problem + second.problem


def test_a_missing_manager_is_an_error_unless_somebody_holds_its_lease() -> None:
    objects = healthy()
    objects[Deployment] = [builders.workload("koord-scheduler")]

    assert findings("components", snapshot(objects)) == []  # its lease is fresh: it runs elsewhere

    objects[Lease] = [each for each in objects[Lease] if each.metadata.name != "koordinator-manager"]
    found = only("components", snapshot(objects))
    assert (found.severity, found.problem) == (FindingSeverity.ERROR, "missing")


def test_components_inside_of_koordinator_up_are_not_missed() -> None:
    objects = healthy()
    objects[Deployment], objects[DaemonSet], objects[Lease], objects[Pod] = [], [], [], []

    assert findings("components", snapshot(objects, server_version="v1.32.0+koordinator")) == []
    assert len(findings("components", snapshot(objects))) == 3


def test_an_installation_in_another_namespace_is_pointed_to() -> None:
    objects = healthy()
    objects[Deployment] = []
    objects[Lease] = []
    objects[Pod] = [builders.pod(namespace="colocation", koord_app="koord-manager")]

    found = findings("components", snapshot(objects))

    assert {each.remedy for each in found} == {("koordinator doctor --namespace colocation",)}


def test_pods_that_do_not_start_are_reported_with_their_reason() -> None:
    objects = healthy()
    objects[Deployment][0] = builders.workload("koord-manager", ready=0)
    waiting = {
        "metadata": {
            "name": "manager-2",
            "namespace": builders.NAMESPACE,
            "labels": {"koord-app": "koord-manager"},
        },
        "status": {
            "containerStatuses": [
                {
                    "name": "main",
                    "image": "koordinator:typo",
                    "state": {"waiting": {"reason": "ImagePullBackOff"}},
                }
            ]
        },
    }
    objects[Pod].append(builders.decoded(Pod, waiting))

    found = only("components", snapshot(objects))

    assert found.problem == "0 of 2 pods are ready: ImagePullBackOff koordinator:typo"
    assert found.severity is FindingSeverity.ERROR


def test_components_of_different_versions_are_reported() -> None:
    objects = healthy()
    objects[DaemonSet] = [builders.koordlet(image="registry:5000/koordlet:0.0.9")]

    found = only("components", snapshot(objects))

    assert "0.0.9" in found.problem
    assert "0.1.0" in found.problem


@pytest.mark.parametrize(
    ("seconds_ago", "words"),
    [(2.0, ""), (40.0, "no instance leads"), (-60.0, "in the future")],
)
def test_a_lease_must_be_renewed_in_time(seconds_ago: float, words: str) -> None:
    objects = healthy()
    objects[Lease][0] = builders.lease("koordinator-manager", "manager-0_x", seconds_ago=seconds_ago)

    found = findings("leases", snapshot(objects))

    assert [words in each.problem for each in found] == ([True] if words else [])


def test_a_lease_that_an_instance_elsewhere_gave_up_is_no_trouble() -> None:
    objects = healthy()
    objects[Deployment], objects[Pod] = [], []
    objects[Lease] = [builders.lease("koordinator-manager", "", seconds_ago=900)]

    assert findings("leases", snapshot(objects)) == []


def test_a_leader_that_is_no_pod_of_ours_is_a_second_installation() -> None:
    objects = healthy()
    objects[Lease][0] = builders.lease("koordinator-manager", "laptop_7")

    assert "laptop_7" in only("leases", snapshot(objects)).problem


def test_leadership_that_changes_all_the_time_is_reported() -> None:
    objects = healthy()
    objects[Lease][0] = builders.lease("koordinator-manager", "manager-0_x", transitions=400)

    assert "400 times" in only("leases", snapshot(objects)).problem


def test_a_priority_class_with_another_value_counts_as_another_class() -> None:
    objects = healthy()
    objects[PriorityClass] = [
        msgspec.structs.replace(each, value=9_100) if each.metadata.name == "koord-batch" else each
        for each in objects[PriorityClass]
        if each.metadata.name != "koord-free"
    ]

    changed, missing = findings("priority-classes", snapshot(objects))

    assert changed.object == "PriorityClass koord-batch"
    assert "koord-prod" in changed.why
    assert missing.object == "PriorityClass koord-free"
    assert missing.remedy == ("kubectl create priorityclass koord-free --value=3000",)


def test_what_may_not_be_read_is_a_notice_and_not_a_crash() -> None:
    found = snapshot()
    forbidden = {**found.listings, Lease: Listing(gap='leases is forbidden: User "eve" cannot list')}

    report = examine(msgspec.structs.replace(found, listings=forbidden))

    assert list(report.not_done) == ["leases", "migrations", "tidal-pools", "yarn-operator"]
    (notice,) = report.findings
    assert notice.severity is FindingSeverity.NOTICE
    assert "eve" in notice.problem
