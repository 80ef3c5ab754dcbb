"""The manifests in deploy/yarn-copilot fit the agent that they run."""

from typing import Any

from koordinator.api import copilot
from koordinator.cli import yarn_copilot
from tests.cli.deployed import Deployed

DEPLOYED = Deployed("yarn-copilot")


def test_the_command_line_is_understood_and_its_directories_are_mounted() -> None:
    container = DEPLOYED.container()
    with yarn_copilot.main.make_context("koord-yarn-copilot", list(container["args"])) as context:
        asked: dict[str, Any] = context.params
    mounts = {mount["mountPath"].rstrip("/"): mount for mount in container["volumeMounts"]}
    assert asked["cgroup_root_dir"].rstrip("/") in mounts
    assert asked["server_endpoint"].startswith(f"{copilot.SOCKETS}/")
    assert not mounts[copilot.SOCKETS].get("readOnly")


def test_it_sees_the_processes_of_the_host_and_may_ask_the_kubelet() -> None:
    pod = DEPLOYED.of_kind("DaemonSet")["spec"]["template"]["spec"]
    assert pod["hostPID"] and pod["hostNetwork"]
    assert DEPLOYED.may("get", "", "nodes/proxy")


def test_the_node_agent_finds_the_socket_where_it_is_made() -> None:
    (volume,) = (
        each
        for each in DEPLOYED.of_kind("DaemonSet")["spec"]["template"]["spec"]["volumes"]
        if each["name"] == "yarn-copilot"
    )
    koordlet = {mount["name"]: mount for mount in Deployed("koordlet").container()["volumeMounts"]}
    assert koordlet["host-var-run"]["mountPath"] == "/host-var-run/"
    assert volume["hostPath"]["path"] == copilot.SOCKETS
