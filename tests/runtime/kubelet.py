"""A real kubelet on the test node, without API server: it makes groups, asks containerd, and runs pods of files."""

import json
import subprocess
from collections.abc import Mapping
from typing import Any

from tests.real import binaries
from tests.runtime.node import WAIT_S, RuntimeNode
from tests.runtime.surroundings import NODE

LOG = "kubelet"
_AFTER_GROUPS = "Starting Kubelet Plugin Manager"
"""The first line that it logs after that; its health says nothing of them."""
_NO_EVICTION = {"memory.available": "1Mi", "nodefs.available": "0%", "nodefs.inodesFree": "0%"}


def why_missing() -> str:
    """Empty where a kubelet is; else a line that says how to make one."""
    if binaries.find("kubelet") is not None:
        return ""
    return "no kubelet: install Go and run `python -m tests.real.binaries kubelet`, which builds it (minutes)"


class RunningKubelet:
    """The kubelet; started again it finds the groups of before."""

    def __init__(self, node: RuntimeNode) -> None:
        self._node = node
        self._pods = node.folder / "static-pods"
        self._pods.mkdir(exist_ok=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._said = 0
        """Characters that kubelets before this one logged."""

    def start(self) -> None:
        """Start it, and wait until it has made its groups. Raises: AssertionError with its last words when it ends."""
        program = binaries.find("kubelet")
        assert program is not None, why_missing()
        folder = self._node.folder
        config = folder / "kubelet.json"
        config.write_text(json.dumps(self._config()))
        flags = (f"--config={config}", f"--root-dir={folder}/kubelet", f"--hostname-override={NODE}", "-v=2")
        self._said = len(self._node.log(LOG))
        self._process = self._node.spawn(LOG, (str(program), *flags))
        self._node.until(self._has_groups, LOG)

    def said(self) -> str:
        """What this one has logged so far."""
        return self._node.log(LOG)[self._said :]

    def run_pod(self, name: str, manifest: Mapping[str, Any]) -> None:
        """Have it run a pod."""
        (self._pods / f"{name}.json").write_text(json.dumps(manifest))

    def end(self) -> None:
        """End it; its pods go on."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(WAIT_S)

    def _has_groups(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.said()[-4000:]
        return _AFTER_GROUPS in self.said()

    def _config(self) -> Mapping[str, Any]:
        folder = self._node.folder
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "failSwapOn": False,
            "cgroupDriver": "cgroupfs",
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "staticPodPath": str(self._pods),
            "podLogsDir": str(folder / "pod-logs"),
            "volumePluginDir": str(folder / "volume-plugins"),
            "healthzPort": 0,
            "enableServer": False,
            "authentication": {"webhook": {"enabled": False}, "anonymous": {"enabled": True}},
            "authorization": {"mode": "AlwaysAllow"},
            "makeIPTablesUtilChains": False,
            "syncFrequency": "1s",
            "fileCheckFrequency": "1s",
            "evictionHard": _NO_EVICTION,
        }
