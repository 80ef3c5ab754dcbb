"""Checks of what users bring: profiles, pods, quotas."""

from typing import Any

import pytest

from koordinator.api.admission import MutatingWebhookConfiguration
from koordinator.api.core import Namespace, Node, Pod
from koordinator.api.groups import ClusterColocationProfile, PriorityClass
from koordinator.api.meta import Object
from koordinator.api.sigs import ElasticQuota
from koordinator.doctor.checks.all import examine
from koordinator.doctor.finding import FindingSeverity
from tests.doctor import builders
from tests.doctor.builders import decoded, findings, healthy, labelled, node, only, pod, snapshot

Objects = dict[type[Object], list[Any]]
Q = "quota.scheduling.koordinator.sh"


def profile(name: str = "spark", **spec: Any) -> ClusterColocationProfile:
    return decoded(ClusterColocationProfile, {"spec": spec}, name=name)


def with_profiles(*profiles: ClusterColocationProfile) -> Objects:
    objects = healthy()
    objects[ClusterColocationProfile] = list(profiles)
    return objects


GOOD = {"qosClass": "BE", "priorityClassName": "koord-batch", "schedulerName": "koord-scheduler"}


def test_a_profile_that_fits_is_fine() -> None:
    assert findings("profiles", snapshot(with_profiles(profile(**GOOD)))) == []


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"priorityClassName": "koord-batsh"}, "no PriorityClass koord-batsh exists"),
        ({"schedulerName": "koord-sheduler"}, "no scheduler runs as koord-sheduler"),
        ({"qosClass": "BE", "priorityClassName": "koord-prod"}, "cannot be used in combination"),
        ({"probability": "often"}, "spec.probability"),
        ({"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}, "spec.selector: operator In"),
        (
            {
                "namespaceSelector": {
                    "matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]
                }
            },
            "spec.namespaceSelector: operator Exists",
        ),
    ],
)
def test_a_profile_that_cannot_work_is_an_error_with_its_field(spec: dict[str, Any], words: str) -> None:
    found = only("profiles", snapshot(with_profiles(profile(**spec))))

    assert found.severity is FindingSeverity.ERROR
    assert words in found.problem


def test_a_profile_that_reaches_no_namespace_does_nothing() -> None:
    objects = with_profiles(profile(namespaceSelector={"matchLabels": {"colocation": "true"}}, **GOOD))
    assert "matches no namespace" in only("profiles", snapshot(objects)).problem

    chosen = {"metadata": {"labels": {"colocation": "true"}}}
    objects[Namespace].append(decoded(Namespace, chosen, name="spark"))
    assert findings("profiles", snapshot(objects)) == []


def test_profiles_that_meet_and_differ_contradict_each_other() -> None:
    one = profile("a", qosClass="LS", selector={"matchLabels": {"app": "web"}})
    other = profile("b", qosClass="BE", selector={"matchLabels": {"tier": "free"}})
    objects = with_profiles(one, other)
    assert findings("profiles", snapshot(objects)) == []

    objects[Pod].append(labelled(pod("both"), app="web", tier="free"))
    found = only("profiles", snapshot(objects))
    assert found.object == "ClusterColocationProfile b"
    assert "contradicts a in qosClass (LS / BE), for 1 of the pods" in found.problem


@pytest.mark.parametrize("same", [{}, {"selector": {"matchLabels": {"app": "web"}}}])
def test_equal_selectors_contradict_without_any_pod(same: dict[str, Any]) -> None:
    objects = with_profiles(profile("a", qosClass="LS", **same), profile("b", qosClass="BE", **same))

    assert "contradicts a" in only("profiles", snapshot(objects)).problem


def test_a_profile_for_all_and_one_for_some_are_mostly_meant_like_that() -> None:
    some = profile("b", qosClass="BE", selector={"matchLabels": {"app": "web"}})
    report = examine(snapshot(with_profiles(profile("a", qosClass="LS"), some)), ["profiles"])

    (notice,) = report.findings
    assert notice.severity is FindingSeverity.NOTICE
    assert "for pods of namespace default that its selector matches" in notice.problem


def test_profiles_need_the_pod_webhook() -> None:
    objects = with_profiles(profile(**GOOD))
    objects[MutatingWebhookConfiguration] = []

    assert "profiles have no effect" in only("features", snapshot(objects)).why


def test_pods_that_admission_would_refuse_today_are_grouped_by_rule() -> None:
    objects = healthy()
    objects[Pod] += [
        labelled(pod(f"odd-{index}", priority=9_000), **{"koordinator.sh__qosClass": "BE"})
        for index in range(3)
    ]

    found = only("pods", snapshot(objects))

    assert found.object == "3 Pods"
    assert "koordinator.sh/qosClass=BE and priorityClass=koord-prod" in found.problem


def test_pods_of_the_control_plane_are_not_held_to_the_rules() -> None:
    objects = healthy()
    objects[Pod].append(
        labelled(
            pod("own", namespace=builders.NAMESPACE, priority=9_000), **{"koordinator.sh__qosClass": "BE"}
        )
    )

    assert findings("pods", snapshot(objects)) == []


def test_batch_pods_wait_when_no_node_lends() -> None:
    wanted = {"kubernetes.io/batch-cpu": "1000"}
    waiting = labelled(
        pod("job", node_name="", phase="Pending", requests=wanted, priority=5_500),
        **{"koordinator.sh__qosClass": "BE"},
    )
    objects = healthy()
    objects[Pod].append(waiting)
    assert findings("pods", snapshot(objects)) == []

    objects[Node] = [node(batch_milli=None)]
    found = only("pods", snapshot(objects))
    assert found.object == "Pod default/job"
    assert "no node offers any" in found.problem


def test_pods_that_wait_for_a_scheduler_that_is_not_there_are_reported() -> None:
    objects = healthy()
    objects[Pod].append(pod("lost", node_name="", phase="Pending", scheduler="volcano"))
    assert "waits for scheduler volcano" in only("schedulers", snapshot(objects)).problem

    objects[Pod].append(pod("found", scheduler="volcano"))  # somebody placed that one
    assert findings("schedulers", snapshot(objects)) == []


def test_a_new_pod_may_wait_a_moment() -> None:
    objects = healthy()
    objects[Pod].append(pod("new", node_name="", phase="Pending", scheduler="volcano", seconds_ago=5))

    assert findings("schedulers", snapshot(objects)) == []


def quota(
    name: str, *, parent: str = "", is_parent: bool = False, low: str = "1", high: str = "10"
) -> ElasticQuota:
    labels = {
        f"{Q}/is-parent": "true" if is_parent else "false",
        **({f"{Q}/parent": parent} if parent else {}),
    }
    spec = {"min": {"cpu": low}, "max": {"cpu": high}}
    return decoded(
        ElasticQuota, {"metadata": {"name": name, "namespace": "default", "labels": labels}, "spec": spec}
    )


def with_quotas(*quotas: ElasticQuota) -> Objects:
    objects = healthy()
    objects[ElasticQuota] = list(quotas)
    return objects


def test_quotas_that_fit_are_fine() -> None:
    objects = with_quotas(
        quota("team", is_parent=True, low="4"),
        quota("a", parent="team", low="2"),
        quota("b", parent="team", low="2"),
    )

    assert findings("quotas", snapshot(objects)) == []


@pytest.mark.parametrize(
    ("quotas", "words"),
    [
        pytest.param([quota("a", parent="nobody")], "nobody", id="a parent that does not exist"),
        pytest.param(
            [quota("team", is_parent=False), quota("a", parent="team")],
            "is not a parent quota",
            id="a leaf as parent",
        ),
        pytest.param(
            [
                quota("team", is_parent=True, low="3"),
                quota("a", parent="team", low="2"),
                quota("b", parent="team", low="2"),
            ],
            "cpu 4 > 3",
            id="children that are promised more than their parent has",
        ),
        pytest.param(
            [quota("a", parent="b", is_parent=True), quota("b", parent="a", is_parent=True)],
            "a → b → a",
            id="a circle",
        ),
        pytest.param([quota("a", low="20")], "min", id="min above max"),
    ],
)
def test_quotas_that_do_not_fit_are_reported(quotas: list[ElasticQuota], words: str) -> None:
    found = findings("quotas", snapshot(with_quotas(*quotas)))

    assert any(words in each.problem for each in found)
    assert {each.severity for each in found} == {FindingSeverity.ERROR}


def test_one_name_in_two_namespaces_is_one_quota_too_many() -> None:
    twin = decoded(
        ElasticQuota, {"metadata": {"name": "a", "namespace": "other"}, "spec": {"max": {"cpu": "1"}}}
    )

    assert "default/a has the same name" in only("quotas", snapshot(with_quotas(quota("a"), twin))).problem


def test_a_class_that_makes_every_pod_a_batch_pod_is_a_trap() -> None:
    objects = healthy()
    objects[PriorityClass].append(
        decoded(PriorityClass, {"value": 5_100, "globalDefault": True}, name="cheap")
    )

    assert "every pod without a priority class" in only("priority-classes", snapshot(objects)).why
