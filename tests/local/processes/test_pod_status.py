"""Phase and conditions of a pod from the states of its containers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api.core import ContainerStatus
from koordinator.local.processes import container_state
from koordinator.local.processes.container_state import (
    ContainerRecord,
    ContainerWaiting,
    PodFailure,
    PodStatusFacts,
    RestartBackoff,
    Running,
    State,
    Terminated,
)
from tests.local.processes.pods import container, pod

RUNNING = Running(100.0)
DONE = Terminated(0, "Completed", 100.0, 110.0, "containerd://a")
FAILED = Terminated(3, "Error", 100.0, 110.0, "containerd://a")
CREATING = ContainerWaiting()
CRASHED = ContainerWaiting("CrashLoopBackOff", "back-off 10s")


def record(
    state: State, *, name: str = "main", is_init: bool = False, sidecar: bool = False
) -> ContainerRecord:
    more: dict[str, Any] = {"restartPolicy": "Always"} if sidecar else {}
    made = ContainerRecord(pod(container(name, **more)).spec.containers[0], is_init=is_init)
    made.state = state
    made.last = FAILED if state is CRASHED else None
    made.is_started = made.is_ready = isinstance(state, Running)
    return made


def facts(policy: str = "Always", **more: Any) -> PodStatusFacts:
    values: dict[str, Any] = {
        "host_ip": "127.0.0.1",
        "pod_ip": "127.64.0.2",
        "started_s": 90.0,
        "has_sandbox": True,
    }
    return PodStatusFacts(restart_policy=policy, **(values | more))


@pytest.mark.parametrize(
    ("policy", "states", "phase"),
    [
        pytest.param("Always", [CREATING], "Pending", id="not created yet"),
        pytest.param("Always", [RUNNING, CREATING], "Pending", id="one not created yet"),
        pytest.param("Always", [RUNNING], "Running", id="runs"),
        pytest.param("Always", [CRASHED], "Running", id="waits for its restart"),
        pytest.param("Always", [DONE], "Running", id="will be restarted"),
        pytest.param("OnFailure", [DONE, RUNNING], "Running", id="one still runs"),
        pytest.param("OnFailure", [DONE, DONE], "Succeeded", id="all succeeded"),
        pytest.param("OnFailure", [DONE, FAILED], "Running", id="one will be restarted"),
        pytest.param("Never", [DONE, FAILED], "Failed", id="one failed for good"),
        pytest.param("Never", [DONE], "Succeeded", id="succeeded"),
    ],
)
def test_the_phase(policy: str, states: list[State], phase: str) -> None:
    assert container_state.phase(facts(policy), [], [record(state) for state in states]) == phase


@pytest.mark.parametrize(
    ("policy", "steps", "phase"),
    [
        pytest.param("Always", [record(RUNNING, is_init=True)], "Pending", id="a step runs"),
        pytest.param("Always", [record(FAILED, is_init=True)], "Pending", id="a step will be tried again"),
        pytest.param("Never", [record(FAILED, is_init=True)], "Failed", id="a step failed for good"),
        pytest.param("Always", [record(DONE, is_init=True)], "Running", id="steps are done"),
        pytest.param(
            "Always", [record(CREATING, is_init=True, sidecar=True)], "Pending", id="a sidecar is to come"
        ),
        pytest.param("Always", [record(RUNNING, is_init=True, sidecar=True)], "Running", id="a sidecar runs"),
    ],
)
def test_the_phase_with_steps_before(policy: str, steps: list[ContainerRecord], phase: str) -> None:
    assert container_state.phase(facts(policy), steps, [record(RUNNING)]) == phase


def test_a_sidecar_that_runs_keeps_a_finished_job_running() -> None:
    side = record(RUNNING, is_init=True, sidecar=True)

    assert container_state.phase(facts("Never"), [side], [record(DONE)]) == "Running"
    side.state = FAILED
    assert container_state.phase(facts("Never"), [side], [record(DONE)]) == "Succeeded"


def test_a_stopped_pod_succeeded_only_if_all_of_it_did() -> None:
    over = facts(is_stopped=True)

    assert container_state.phase(over, [], [record(DONE)]) == "Succeeded"
    assert container_state.phase(over, [], [record(DONE), record(FAILED)]) == "Failed"
    assert container_state.phase(over, [], [record(CREATING)]) == "Failed"


def test_a_reason_of_the_kubelet_fails_the_pod_whatever_its_containers_say() -> None:
    refused = facts(failure=PodFailure("OutOfcpu", "no room"))

    status = container_state.status(refused, [], [record(CREATING)], {}, 200.0)

    assert (status["phase"], status["reason"], status["message"]) == ("Failed", "OutOfcpu", "no room")


def conditions(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each.get("reason", "")) for each in status["conditions"]}


def test_conditions_of_a_pod_whose_container_is_not_ready() -> None:
    main = record(RUNNING)
    main.is_ready = False

    status = container_state.status(facts(), [], [main], {}, 200.0)

    assert conditions(status) == {
        "PodReadyToStartContainers": ("True", ""),
        "Initialized": ("True", ""),
        "Ready": ("False", "ContainersNotReady"),
        "ContainersReady": ("False", "ContainersNotReady"),
        "PodScheduled": ("True", ""),
    }
    assert status["conditions"][3]["message"] == "containers with unready status: [main]"


def test_a_readiness_gate_holds_back_ready_but_not_its_containers() -> None:
    gated = facts(readiness_gates=("example.com/open",))
    opened = {"conditions": [{"type": "example.com/open", "status": "True"}]}

    closed = conditions(container_state.status(gated, [], [record(RUNNING)], {}, 200.0))
    assert (closed["Ready"], closed["ContainersReady"]) == (("False", "ReadinessGatesNotReady"), ("True", ""))
    assert conditions(container_state.status(gated, [], [record(RUNNING)], opened, 200.0))["Ready"] == (
        "True",
        "",
    )


def test_a_condition_keeps_its_time_until_it_changes() -> None:
    main = record(RUNNING)
    first = container_state.status(facts(), [], [main], {}, 200.0)
    second = container_state.status(facts(), [], [main], first, 300.0)
    main.is_ready = False
    third = container_state.status(facts(), [], [main], second, 400.0)

    assert second == first
    since = {each["type"]: each["lastTransitionTime"] for each in third["conditions"]}
    assert since["Ready"] != since["Initialized"] == "1970-01-01T00:03:20Z"


def test_pauses_before_restarts_double_and_are_forgiven() -> None:
    backoff = RestartBackoff()
    now_s, pauses = 0.0, []
    for _ in range(8):
        pauses.append(backoff.next_s(now_s))
        now_s += pauses[-1] + 1.0

    assert pauses == [0.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]
    assert backoff.next_s(now_s + 601.0) == 0.0


@given(st.lists(st.floats(0, 2_000), min_size=1, max_size=20))
def test_pauses_never_exceed_five_minutes(runs_s: list[float]) -> None:
    backoff = RestartBackoff()
    now_s = 0.0
    for run_s in runs_s:
        now_s += run_s
        pause_s = backoff.next_s(now_s)
        assert 0.0 <= pause_s <= 300.0
        now_s += pause_s


@pytest.mark.parametrize(
    ("policy", "code", "step", "sidecar", "again"),
    [
        ("Always", 0, False, False, True),
        ("OnFailure", 0, False, False, False),
        ("OnFailure", 1, False, False, True),
        ("Never", 1, False, False, False),
        ("Always", 0, True, False, False),
        ("OnFailure", 1, True, False, True),
        ("Never", 1, True, False, False),
        ("Never", 0, False, True, True),
    ],
)
def test_who_is_restarted(policy: str, code: int, step: bool, sidecar: bool, again: bool) -> None:
    assert container_state.restarts_again(policy, code, is_step=step, is_sidecar=sidecar) is again


def test_a_container_whose_node_was_restarted_counts_as_killed() -> None:
    before = ContainerStatus(name="main", container_id="containerd://a", restart_count=2)
    main = record(CREATING)

    main.restore(before, 500.0)

    assert isinstance(main.state, Terminated)
    assert (main.state.exit_code, main.restarts, main.state.container_id) == (137, 2, "containerd://a")


def test_a_container_that_never_ran_is_simply_started() -> None:
    main = record(CREATING)

    main.restore(ContainerStatus(name="main"), 500.0)

    assert isinstance(main.state, ContainerWaiting) and main.restarts == 0
