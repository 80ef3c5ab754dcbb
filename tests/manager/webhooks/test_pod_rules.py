"""Rules of pod admission: what is refused, in which words."""

from typing import Any

import pytest

from koordinator.api import labels
from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.manager.options import BindingAdmissionOptions
from koordinator.manager.webhooks import pod_rules, pod_validating
from koordinator.manager.webhooks.pod_rules import PodRule
from koordinator.manager.webhooks.pod_validating import BindingVerdict


def pod(requests: dict[str, str] | None = None, priority: int | None = None, **own: str) -> Pod:
    container = {"name": "c", "resources": {"requests": requests or {}}}
    spec: dict[str, Any] = {"containers": [container]}
    if priority is not None:
        spec["priority"] = priority
    return from_builtins({"metadata": {"name": "p", "namespace": "d", "labels": own}, "spec": spec}, Pod)


def test_all_violations_are_reported_at_once_in_their_order() -> None:
    old = pod({"cpu": "1"}, 9_000, **{labels.QOS_CLASS: "LS", labels.PRIORITY: "1"})
    new = pod({"cpu": "500m", "kubernetes.io/batch-cpu": "1"}, 5_000, **{labels.QOS_CLASS: "LSR"})

    found = pod_rules.colocation(new, old)

    assert [violation.rule for violation in found] == [
        PodRule.QOS_IMMUTABLE,
        PodRule.PRIORITY_CLASS_IMMUTABLE,
        PodRule.SUB_PRIORITY_IMMUTABLE,
        PodRule.BATCH_NEEDS_BE,
        PodRule.LSR_PRIORITY,
        PodRule.CPU_NOT_INTEGER,
    ]
    assert found[0].message == f'labels.{labels.QOS_CLASS}: Invalid value: "LSR": field is immutable'
    assert "LSR and priorityClass=koord-batch cannot be used in combination" in found[4].message
    assert found[5].message == (
        'pod.spec.containers[*].resources.requests: Invalid value: "500m": '
        "the requested CPUs of LSR Pod must be integer"
    )


def test_lent_gpus_are_for_best_effort_pods_which_can_be_evicted() -> None:
    wants = {"koordinator.sh/batch-gpu-core": "50", "koordinator.sh/batch-gpu-memory": "4Gi"}

    found = pod_rules.colocation(pod(wants, 9_000, **{labels.QOS_CLASS: "LS"}), None)

    assert [violation.rule for violation in found] == [PodRule.BATCH_NEEDS_BE]
    assert pod_rules.colocation(pod(wants, 5_000, **{labels.QOS_CLASS: "BE"}), None) == []


def test_the_class_of_a_priority_is_immutable_not_its_number() -> None:
    assert pod_rules.colocation(pod(priority=9_500), pod(priority=9_000)) == []
    assert pod_rules.colocation(pod(priority=9_500), pod(priority=8_999)) != []


@pytest.mark.parametrize(
    ("requests", "said"),
    [
        pytest.param({"koordinator.sh/gpu": "0"}, "must be above 0", id="no GPU"),
        pytest.param({"koordinator.sh/gpu": "250"}, "must be a multiple of it, not 250", id="two and a half"),
        pytest.param(
            {"koordinator.sh/gpu.shared": "1", "koordinator.sh/gpu-core": "50"},
            "exactly one of",
            id="no memory",
        ),
        pytest.param(
            {"koordinator.sh/gpu.shared": "2", "koordinator.sh/gpu-memory-ratio": "75"},
            "gpu-memory-ratio 75 must be a multiple of koordinator.sh/gpu.shared 2",
            id="a share that cannot be split",
        ),
    ],
)
def test_a_bad_gpu_request_is_named_with_its_container(requests: dict[str, str], said: str) -> None:
    (violation,) = pod_rules.devices(pod(requests))

    assert violation.message.startswith("spec.containers[0].resources.requests: ")
    assert said in violation.message


RULES = '[{"name": "owner", "requiredLabels": ["owner", "team"], "namespaceWhitelist": ["free"]}]'


def test_missing_labels_are_listed_with_their_rule() -> None:
    found = pod_rules.label_rules({"enable": " True ", "rules": RULES}, "ConfigMap a/b")

    assert pod_rules.violation(found, "d", {}) == "required labels are missing: [owner team] (rule 'owner')"
    assert pod_rules.violation(found, "d", {"owner": ""}).startswith("required label 'team' is missing")
    assert pod_rules.violation(found, "free", {}) == ""


BINDING = BindingAdmissionOptions(
    user_names=("koord-scheduler",), namespaces=("d",), bypass_annotations=("skip",)
)


@pytest.mark.parametrize(
    ("user", "namespace", "found", "decision"),
    [
        pytest.param("sa:koord-scheduler", "d", None, BindingVerdict.ALLOWED_USERNAME, id="a listed user"),
        pytest.param(
            "old", "kube-system", pod(), BindingVerdict.EXCLUDED_NAMESPACE, id="an excluded namespace"
        ),
        pytest.param("old", "e", pod(), BindingVerdict.OUT_OF_SCOPE, id="another namespace"),
        pytest.param("old", "d", None, BindingVerdict.POD_UNKNOWN, id="a pod that nobody knows"),
        pytest.param(
            "old",
            "d",
            pod(**{labels.BINDING_ADMISSION_BYPASS: ""}),
            BindingVerdict.BYPASS_LABEL,
            id="a pod that may be bound by all",
        ),
        pytest.param("old", "d", pod(), BindingVerdict.DENIED, id="a user who is not listed"),
    ],
)
def test_bindings(user: str, namespace: str, found: Pod | None, decision: BindingVerdict) -> None:
    assert pod_validating.decide(BINDING, user, namespace, lambda: found) is decision
    assert decision.allowed is (decision is not BindingVerdict.DENIED)


def test_a_dry_run_and_empty_lists_deny_nobody() -> None:
    dry = BindingAdmissionOptions(user_names=("a",), namespaces=("*",), dry_run=True)

    assert pod_validating.decide(dry, "old", "d", pod) is BindingVerdict.DRY_RUN
    assert (
        pod_validating.decide(BindingAdmissionOptions(namespaces=("*",)), "old", "d", pod)
        is BindingVerdict.NOT_CHECKED
    )
