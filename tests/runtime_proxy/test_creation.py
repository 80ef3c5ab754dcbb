"""CreateContainer and a hook's answer: what a hook leaves alone goes on byte by byte, the rest as it wants it."""

import msgspec
import pytest

from koordinator.host import protobuf_messages
from koordinator.host.cri_messages import (
    ContainerIDMessage,
    CreateContainerRequest,
    KeyValue,
    LinuxContainerResources,
    PodSandboxConfig,
)
from koordinator.host.hook_messages import ContainerResourceHookRequest, ContainerResourceHookResponse
from koordinator.runtime_proxy import interception
from koordinator.runtime_proxy.checkpoints import Checkpoints, SandboxInfo
from koordinator.runtime_proxy.creation import CreateContainer, CreatePart
from tests.runtime_proxy.fake_runtime import PARENT, container_request, sandbox_config

entries = protobuf_messages.entries
RAW = protobuf_messages.encode(container_request())


def call(parent: str = PARENT) -> CreateContainer:
    """A creation in a sandbox that a hook may have given another cgroup parent."""
    sandbox = msgspec.structs.replace(SandboxInfo.of_config(sandbox_config()), cgroup_parent=parent)
    part = protobuf_messages.decode(CreatePart, RAW)
    assert part.config is not None
    return CreateContainer.of(part, part.config, sandbox)


def answered(given: CreateContainer, **answer: object) -> CreateContainerRequest:
    """What the runtime is asked for after an answer."""
    response = ContainerResourceHookResponse(**answer)  # type: ignore[arg-type]
    return sent(given.with_answer(protobuf_messages.encode(response)))


def sent(given: CreateContainer) -> CreateContainerRequest:
    return protobuf_messages.decode(CreateContainerRequest, given.request())


def test_hooks_are_told_all_of_a_container_and_its_pod() -> None:
    told = protobuf_messages.decode(ContainerResourceHookRequest, call().hook_request())

    config = container_request().config
    assert config is not None and config.linux is not None
    assert told.container_meta is not None and told.container_meta.name == "main"
    assert protobuf_messages.texts(told.container_annotations) == {"a": "1"}
    assert told.container_resources == config.linux.resources
    assert protobuf_messages.texts(told.container_envs) == {"PATH": "/bin", "B": "2"}
    assert told.pod_meta == sandbox_config().metadata
    assert (told.pod_labels, told.pod_annotations) == (sandbox_config().labels, sandbox_config().annotations)
    assert told.pod_cgroup_parent == PARENT


@pytest.mark.parametrize(
    "variables",
    [{}, {"PATH": "/bin", "B": "2"}, {"B": "2", "PATH": "/bin"}],
    ids=["nothing", "the same", "the same in another order"],
)
def test_an_answer_that_says_nothing_new_changes_no_byte(variables: dict[str, str]) -> None:
    response = ContainerResourceHookResponse(entries({"a": "1"}), None, PARENT, entries(variables))

    made = call().with_answer(protobuf_messages.encode(response))

    assert made.request() == call().request()
    assert sent(made) == container_request()


def test_annotations_grow_and_variables_are_replaced_in_their_order() -> None:
    made = answered(
        call(),
        container_annotations=entries({"a": "2", "b": ""}),
        container_envs=entries({"NEW": "x", "B": "3"}),
    )

    assert made.config is not None
    assert made.config.annotations == {"a": "2", "b": ""}
    assert made.config.envs == (KeyValue("B", "3"), KeyValue("NEW", "x"))


def test_resources_of_an_answer_reach_the_runtime_and_later_calls() -> None:
    answer = ContainerResourceHookResponse(
        container_resources=LinuxContainerResources(cpu_shares=512, cpu_quota=-1, oom_score_adj=0)
    )
    made = call().with_answer(protobuf_messages.encode(answer))
    checkpoints = Checkpoints()

    made.store(protobuf_messages.encode(ContainerIDMessage("c1")), checkpoints)

    config = sent(made).config
    assert config is not None and config.linux is not None and config.linux.resources is not None
    resources = config.linux.resources
    assert (resources.cpu_period, resources.cpu_shares, resources.cpu_quota) == (100_000, 512, -1)
    assert resources.oom_score_adj == 0
    kept = checkpoints.containers.get("c1")
    assert kept is not None and kept.resources == resources
    told = protobuf_messages.decode(ContainerResourceHookRequest, interception.of_container(kept))
    assert told.container_meta is not None and (told.container_meta.name, told.container_meta.id) == (
        "main",
        "c1",
    )
    assert protobuf_messages.texts(told.container_envs) == {"PATH": "/bin", "B": "2"}


def test_the_cgroup_parent_that_a_hook_gave_the_sandbox_is_told_to_the_runtime_as_well() -> None:
    moved = answered(call("/moved"), pod_cgroup_parent="/moved")
    anew = answered(call(), pod_cgroup_parent="/anew")

    assert [_parent(each.sandbox_config) for each in (moved, anew)] == ["/moved", "/anew"]
    assert moved.sandbox_config is not None and moved.sandbox_config.labels == sandbox_config().labels


def _parent(config: PodSandboxConfig | None) -> str:
    assert config is not None and config.linux is not None
    return config.linux.cgroup_parent
