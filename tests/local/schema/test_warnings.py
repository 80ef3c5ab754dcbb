"""Warnings about pods and templates: each text is kube-apiserver 1.35.4's."""

from typing import Any

import pytest

from koordinator.local.schema.builtin.warnings import warnings_of

Json = dict[str, Any]


def pod(container: Json | None = None, **spec: Any) -> Json:
    containers = [{"name": "main", "image": "a", **(container or {})}]
    return {"metadata": {"name": "web", "generation": 1}, "spec": {"containers": containers, **spec}}


def affinity(kind: str, when: str, terms: Any) -> Json:
    return pod(affinity={kind: {f"{when}DuringSchedulingIgnoredDuringExecution": terms}})


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        pytest.param(pod(), [], id="nothing to say"),
        pytest.param(
            pod(nodeSelector={"beta.kubernetes.io/arch": "amd64"}),
            [
                "spec.nodeSelector[beta.kubernetes.io/arch]: deprecated since v1.14; use "
                '"kubernetes.io/arch" instead'
            ],
            id="a label that nodes will lose",
        ),
        pytest.param(
            pod({"resources": {"requests": {"memory": "100m", "cpu": "100m"}}}),
            [
                'spec.containers[0].resources.requests[memory]: fractional byte value "100m" is invalid, '
                "must be an integer"
            ],
            id="a tenth of a byte",
        ),
        pytest.param(
            pod({"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "$(A)2"}]}),
            [],
            id="a variable that is continued",
        ),
        pytest.param(
            pod({"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}),
            [
                'spec.containers[0].env[1]: hides previous definition of "A", which may be dropped when using '
                "apply"
            ],
            id="a variable that is replaced",
        ),
        pytest.param(
            pod({"ports": [{"containerPort": 80}, {"containerPort": 80, "hostPort": 8080}]}),
            ["spec.containers[0].ports[1]: overlapping port definition with spec.containers[0].ports[0]"],
            id="a port twice",
        ),
        pytest.param(
            pod(imagePullSecrets=[{"name": "a"}, {"name": "a"}, {}]),
            [
                'spec.imagePullSecrets[1].name: duplicate name "a"',
                'spec.imagePullSecrets[2].name: invalid empty name ""',
            ],
            id="secrets",
        ),
        pytest.param(
            affinity("podAntiAffinity", "required", [{"topologyKey": "zone"}]),
            [
                "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector: "
                "a null labelSelector results in matching no pod"
            ],
            id="affinity to no pod",
        ),
        pytest.param(
            affinity(
                "nodeAffinity",
                "preferred",
                [
                    {
                        "weight": 1,
                        "preference": {
                            "matchExpressions": [
                                {"key": "node-role.kubernetes.io/master", "operator": "In", "values": ["ok"]}
                            ]
                        },
                    }
                ],
            ),
            [
                "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference."
                "matchExpressions[0].key: node-role.kubernetes.io/master is use "
                '"node-role.kubernetes.io/control-plane" instead'
            ],
            id="a preference for an old label",
        ),
    ],
)
def test_a_new_pod(obj: Json, expected: list[str]) -> None:
    assert warnings_of("", "Pod", obj, None) == expected


def test_pods_are_warned_about_once_and_workloads_when_their_spec_changes() -> None:
    bad = pod(nodeSelector={"app.kubernetes.io/created-by": "me"})
    job = {"metadata": bad["metadata"], "spec": {"template": bad}}
    changed = {**job, "metadata": {"name": "web", "generation": 2}}

    expected = ["spec.template.spec.nodeSelector[app.kubernetes.io/created-by]: deprecated since v1.9"]
    assert warnings_of("batch", "Job", job, None) == expected
    assert warnings_of("batch", "Job", job, job) == []
    assert warnings_of("batch", "Job", changed, job) == expected
    assert warnings_of("", "Pod", {**bad, "metadata": changed["metadata"]}, bad) == []


def test_pods_get_their_names_from_workloads() -> None:
    deployment = {"metadata": {"name": "web.v2", "generation": 1}, "spec": {"template": pod()}}

    assert warnings_of("apps", "DaemonSet", deployment, None) == []
    [found] = warnings_of("apps", "Deployment", deployment, None)
    assert found == (
        "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label "
        "is recommended: [must not contain dots]"
    )
