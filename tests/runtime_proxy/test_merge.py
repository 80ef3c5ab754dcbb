"""Merging of resources, routing of calls and the Docker rules of the runtime proxy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.host.cri_messages import LinuxContainerResources
from koordinator.runtime_proxy import dispatch, docker, merge
from koordinator.runtime_proxy.dispatch import Checkpoint, FailurePolicy

numbers = st.sampled_from([-1, 0, 1, 1000, 1001])
texts = st.sampled_from(["", "0", "0-3"])
resources = st.builds(
    LinuxContainerResources,
    cpu_period=numbers,
    cpu_quota=numbers,
    cpu_shares=numbers,
    memory_limit_in_bytes=numbers,
    oom_score_adj=numbers,
    cpuset_cpus=texts,
    cpuset_mems=texts,
    unified=st.dictionaries(st.sampled_from("ab"), texts, max_size=2),
    memory_swap_limit_in_bytes=numbers,
)
MERGES = [merge.with_answer, merge.with_update, merge.with_docker_update]


@pytest.mark.parametrize("merging", MERGES)
@given(old=resources, new=resources)
def test_merging_the_same_again_changes_nothing(merging, old, new) -> None:
    once = merging(old, new)
    assert merging(once, new) == once


@pytest.mark.parametrize("merging", [merge.with_update, merge.with_docker_update])
@given(old=resources)
def test_an_empty_update_changes_nothing(merging, old) -> None:
    assert merging(old, LinuxContainerResources()) == old


@given(old=resources, new=resources)
def test_an_update_never_touches_the_oom_score(
    old: LinuxContainerResources, new: LinuxContainerResources
) -> None:
    updated = merge.with_update(old, new)
    assert updated is not None
    assert updated.oom_score_adj == old.oom_score_adj


def test_an_empty_cpuset_of_an_answer_clears_the_cpuset() -> None:
    merged = merge.with_answer(LinuxContainerResources(cpuset_cpus="0-3"), LinuxContainerResources())
    assert merged == LinuxContainerResources()


def test_docker_does_not_lift_a_quota_by_minus_one() -> None:
    lifted = LinuxContainerResources(cpu_quota=-1)
    assert merge.with_docker_update(LinuxContainerResources(cpu_quota=30), lifted) == LinuxContainerResources(
        cpu_quota=30
    )


def test_a_method_without_hooks_goes_to_the_runtime_only() -> None:
    path = dispatch.route("ListContainers", ["PreCreateContainer"], {})

    assert dispatch.calls(path, FailurePolicy.FAIL, hook_fails=True) == dispatch.Calls(("backend",), False)


def test_a_failing_hook_is_passed_over_when_its_policy_is_ignore() -> None:
    path = dispatch.route("StartContainer", ["PreStartContainer", "PostStartContainer"], {})

    found = dispatch.calls(path, FailurePolicy.IGNORE, hook_fails=True)

    assert found == dispatch.Calls(("PreStartContainer", "backend", "PostStartContainer"), False)


def test_a_pod_that_skips_hooks_is_still_forgotten_when_it_stops() -> None:
    path = dispatch.route("StopContainer", ["PostStopContainer"], {dispatch.SKIP_LABEL: "true"})
    assert (path.after, path.checkpoint) == ("", Checkpoint.DELETE)


@given(names=st.lists(st.from_regex(r"[a-z0-9_]{1,5}", fullmatch=True), min_size=1, max_size=4))
def test_a_slice_path_leads_back_to_its_docker_parent(names: list[str]) -> None:
    parent = "-".join(names) + ".slice"
    assert docker.to_docker_parent("systemd", docker.to_cri_path("systemd", parent)) == parent


def test_labels_with_the_prefix_are_annotations() -> None:
    split = docker.split_labels({"annotation.a": "1", "b": "2"})
    assert split == docker.SplitLabels(labels={"b": "2"}, annotations={"a": "1"})
