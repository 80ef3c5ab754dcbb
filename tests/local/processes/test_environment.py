"""Variables, commands and arguments of containers."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.local.processes import environment
from koordinator.local.processes.environment import ContainerConfigError, EnvironmentSources, NoCommand
from koordinator.local.processes.launch import Identity
from tests.local.processes.pods import container, pod

AROUND = EnvironmentSources(
    node_name="vm",
    host_ip="127.0.0.1",
    pod_ip="127.64.0.2",
    allocatable={"cpu": "2", "memory": "4Gi"},
    config_maps={"conf": {"key": "value", "no name": "x"}, "lost": None},
    secrets={"word": {"word": "sesame"}},
)


def variables(*env: dict[str, object], **more: object) -> dict[str, str]:
    found = pod(container(env=list(env), limits={"cpu": "1500m", "memory": "100Mi"}, **more))
    return environment.of_container(found, found.spec.containers[0], AROUND)


def of(name: str, source: dict[str, object]) -> dict[str, object]:
    return {"name": name, "valueFrom": source}


@pytest.mark.parametrize(
    ("of_pod", "of_container", "expected"),
    [
        ({}, {}, Identity()),
        ({"runAsUser": 7, "runAsGroup": 8}, {}, Identity(7, 8)),
        ({"runAsUser": 7, "runAsGroup": 8}, {"runAsUser": 0}, Identity(0, 8)),
        ({"runAsNonRoot": True, "runAsUser": 7}, {}, Identity(7)),
        ({"runAsNonRoot": True}, {"runAsNonRoot": False}, Identity()),
    ],
)
def test_a_container_has_a_user_of_its_own_or_the_one_of_its_pod(
    of_pod: dict[str, object], of_container: dict[str, object], expected: Identity
) -> None:
    found = pod(container(securityContext=of_container), securityContext=of_pod)

    assert environment.identity(found, found.spec.containers[0], own_user=0) == expected


@pytest.mark.parametrize(
    ("of_container", "reason"),
    [
        ({}, "container has runAsNonRoot and image will run as root"),
        ({"runAsUser": 0}, "container's runAsUser breaks non-root policy"),
    ],
)
def test_root_is_refused_where_a_pod_does_not_want_it(of_container: dict[str, object], reason: str) -> None:
    found = pod(container(securityContext=of_container), securityContext={"runAsNonRoot": True})

    with pytest.raises(ContainerConfigError) as refused:
        environment.identity(found, found.spec.containers[0], own_user=0)
    assert str(refused.value) == f'{reason} (pod: "web_default(uid-web)", container: main)'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)-$(B)", "a-$(B)"),
        ("$$(A)", "$(A)"),
        ("$A $ $(", "$A $ $("),
        ("$(A)$(A)", "aa"),
        ("$$$(A)", "$a"),
    ],
)
def test_references_are_replaced_where_there_is_such_a_variable(text: str, expected: str) -> None:
    assert environment.expand(text, {"A": "a"}) == expected


@given(st.text(alphabet="ab ()", max_size=20))
def test_a_text_without_references_stays_as_it_is(text: str) -> None:
    assert environment.expand(text, {"a": "x", "b": "y"}) == text


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("metadata.name", "web"),
        ("metadata.namespace", "default"),
        ("metadata.labels['app']", "web"),
        ("metadata.annotations['note']", "n"),
        ("metadata.labels['none']", ""),
        ("spec.nodeName", "vm"),
        ("status.hostIP", "127.0.0.1"),
        ("status.podIP", "127.64.0.2"),
    ],
)
def test_fields_of_the_pod(path: str, expected: str) -> None:
    assert variables(of("X", {"fieldRef": {"fieldPath": path}}))["X"] == expected


@pytest.mark.parametrize(
    ("ref", "expected"),
    [
        pytest.param({"resource": "limits.cpu"}, "2", id="whole cores, rounded up"),
        pytest.param({"resource": "limits.cpu", "divisor": "1m"}, "1500", id="milli-cores"),
        pytest.param({"resource": "limits.memory", "divisor": "1Mi"}, "100", id="memory"),
        pytest.param({"resource": "requests.cpu"}, "0", id="no request"),
        pytest.param({"resource": "limits.ephemeral-storage"}, "0", id="nothing known"),
        pytest.param({"resource": "limits.cpu", "divisor": "0"}, "2", id="a divisor of zero counts as one"),
    ],
)
def test_resources_of_the_container(ref: dict[str, object], expected: str) -> None:
    assert variables(of("X", {"resourceFieldRef": ref}))["X"] == expected


def test_without_a_limit_the_node_is_the_limit() -> None:
    found = pod(container(env=[of("X", {"resourceFieldRef": {"resource": "limits.cpu"}})]))

    assert environment.of_container(found, found.spec.containers[0], AROUND)["X"] == "2"


def test_later_variables_win_and_may_refer_to_earlier_ones() -> None:
    found = variables(
        {"name": "A", "value": "1"},
        {"name": "B", "value": "$(A)2"},
        of("C", {"configMapKeyRef": {"name": "conf", "key": "key"}}),
        of("D", {"secretKeyRef": {"name": "word", "key": "word"}}),
        of("E", {"configMapKeyRef": {"name": "lost", "key": "key", "optional": True}}),
        envFrom=[{"configMapRef": {"name": "conf"}, "prefix": "P_"}, {"secretRef": {"name": "word"}}],
    )

    assert {name: found[name] for name in "ABCD"} == {"A": "1", "B": "12", "C": "value", "D": "sesame"}
    assert (found["P_key"], found["word"], found["HOSTNAME"]) == ("value", "sesame", "web")
    assert "E" not in found and "P_no name" not in found


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"configMapKeyRef": {"name": "lost", "key": "a"}}, 'configmap "lost" not found'),
        ({"configMapKeyRef": {"name": "conf", "key": "a"}}, "couldn't find key a in ConfigMap default/conf"),
        ({"secretKeyRef": {"name": "none", "key": "a"}}, 'secret "none" not found'),
        ({"fieldRef": {"fieldPath": "spec.containers"}}, "unsupported fieldPath: spec.containers"),
        ({"resourceFieldRef": {"resource": "cpu"}}, "unsupported container resource: cpu"),
        ({"resourceFieldRef": {"resource": "limits.cpu", "containerName": "x"}}, "container x not found"),
        ({"fileKeyRef": {}}, "unsupported source of a variable: fileKeyRef"),
    ],
)
def test_what_is_not_there_is_named(source: dict[str, object], message: str) -> None:
    with pytest.raises(ContainerConfigError, match=message.replace("(", r"\(")):
        variables(of("X", source))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param(
            {"command": ["run", "$(A)"], "args": ["-x", "$(A)"]}, ["run", "a", "-x", "a"], id="both"
        ),
        pytest.param({"image": "busybox:1.36"}, ["sh"], id="an image that is known"),
        pytest.param(
            {"image": "reg:5000/lib/python:3.12@sha256:ab", "args": ["-c", "1"]},
            ["-c", "1"],
            id="arguments only",
        ),
        pytest.param({"image": "registry.k8s.io/pause:3.9"}, ["sleep", "infinity"], id="an entry point"),
    ],
)
def test_the_command_line(spec: dict[str, object], expected: list[str]) -> None:
    assert environment.command_line(pod(container(**spec)).spec.containers[0], {"A": "a"}) == expected


def test_an_unknown_image_without_a_command_says_what_to_do() -> None:
    with pytest.raises(
        NoCommand, match=r'image "nginx:1.27" is not known here.*give the container a command'
    ):
        environment.command_line(pod(container(image="nginx:1.27", args=["x"])).spec.containers[0], {})


def test_secrets_that_are_no_text_are_no_variables() -> None:
    encoded = {
        "good": base64.b64encode(b"x").decode(),
        "binary": base64.b64encode(b"\xff").decode(),
        "broken": "%",
    }

    assert environment.decoded(encoded) == {"good": "x"}


def test_references_to_objects_are_found() -> None:
    found = pod(
        container(
            env=[of("A", {"configMapKeyRef": {"name": "a"}}), of("B", {"secretKeyRef": {"name": "b"}})],
            envFrom=[{"configMapRef": {"name": "c"}}, {"secretRef": {"name": "d"}}],
        )
    )

    assert environment.references(found.spec.containers[0]) == ({"a", "c"}, {"b", "d"})
