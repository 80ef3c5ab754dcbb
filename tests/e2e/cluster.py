"""A cluster that a test starts, and kubectl for it: a `koordinator up`, or real servers (`tests.real`)."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

START_S = 90.0
"""Some seconds of CPU time, which take long on a machine that does much else."""


def with_kubectl(*, timeout_s: int) -> list[pytest.MarkDecorator]:
    """The marks of a module whose tests need kubectl."""
    return [
        pytest.mark.kubectl,
        pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on the PATH"),
        pytest.mark.timeout(timeout_s),
    ]


SERVERS = os.environ.get("KOORDINATOR_TEST_SERVERS", "local")
"""On which kind of server stories run: `local` (`koordinator up`) or `real` (`make test-real`)."""


def _helm() -> str:
    """The user's Helm; on real servers also the one that was built for them."""
    from tests.real import binaries  # it knows nothing of this module, and is not needed elsewhere

    found = binaries.find("helm") if SERVERS == "real" else shutil.which(os.environ.get("HELM") or "helm")
    return str(found or "")


HELM = _helm()
needs_helm = pytest.mark.skipif(
    not HELM, reason="no helm: put it on the PATH, name it in HELM, or have `make test-real` build it (Go)"
)


def only_local(why: str) -> pytest.MarkDecorator:
    """The mark of a story that is about `koordinator up` itself."""
    return pytest.mark.skipif(SERVERS == "real", reason=f"about koordinator up: {why}")


class Cluster:
    """A running cluster: `kubeconfig` is an administrator's, `process` ends when the cluster does."""

    kubeconfig: Path
    process: "subprocess.Popen[Any]"
    remarks: tuple[str, ...] = ()
    """What the doctor rightly says of any cluster of this kind."""

    def kubectl(self, *arguments: str, text: str = "") -> str:
        """Standard output of kubectl; any error or warning fails the test."""
        done = self.run(*arguments, text=text)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        assert "arning" not in done.stderr, done.stderr
        return done.stdout

    def run(self, *arguments: str, text: str = "") -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        return subprocess.run(
            ["kubectl", *arguments], input=text, capture_output=True, text=True, timeout=90, env=environment
        )

    def koordinator(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Our own command, with this cluster's kubeconfig."""
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        command = [sys.executable, "-m", "koordinator.cli.main", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=90, env=environment)

    def get(self, *arguments: str) -> Any:
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def kubeconfig_of(self, account: str) -> Path:
        """The kubeconfig of a component that runs beside the cluster, with no more than its role allows where roles
        count."""
        return self.kubeconfig

    def end_scheduler(self) -> None:
        """End the scheduler where it has a process and a lease of its own."""
        raise NotImplementedError

    def restore(self) -> None:
        """Bring back what an installation has and a story took away, the scheduler included."""
        raise NotImplementedError

    def stop(self, number: int = signal.SIGINT) -> str:
        """What its programs said, after a stop."""
        raise NotImplementedError


class UpCluster(Cluster):
    """A running `koordinator up`."""

    process: "subprocess.Popen[str]"

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "koordinator.cli.main",
                "up",
                "--kubeconfig",
                str(self.kubeconfig),
                *arguments,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            until(self.kubeconfig.exists, START_S, self.process)
        except AssertionError:
            self.process.kill()
            raise

    def end_scheduler(self) -> None:
        """Nothing: it is part of the process, and needs no lease."""

    def restore(self) -> None:
        """Nothing: components in one process have no workloads."""

    def stop(self, number: int = signal.SIGINT) -> str:
        """Standard error after a clean stop."""
        self.process.send_signal(number)
        _, stderr = self.process.communicate(timeout=30)
        return stderr


def started(folder: Path, *arguments: str, workloads: bool = False) -> Cluster:
    """A cluster as `koordinator up` with these arguments is, on the kind of server that this run is about.

    `workloads`: real servers have the Deployments and DaemonSets of an installation, too, as hollow pods, for stories
    that look at an installation. `koordinator up` has all components in one process and none of these.
    """
    if SERVERS == "local":
        return UpCluster(folder, *arguments)
    from tests.real.cluster import RealCluster  # it knows this module

    return RealCluster.like_up(folder, arguments, workloads=workloads)


def scheduler_config(folder: Path, **changes: str) -> Path:
    """The shipped configuration in a file, as a user gets it, with other values of some arguments."""
    path = folder / "scheduler.yaml"
    command = [sys.executable, "-m", "koordinator.cli.scheduler", "--write-config-to", str(path)]
    subprocess.run(command, check=True, timeout=60)
    text = path.read_text()
    for name, value in changes.items():
        text, count = re.subn(rf"\b{name}: .*", f"{name}: {value}", text)
        assert count, f"no {name} in the shipped configuration"
    path.write_text(text)
    return path


def until(holds: Callable[[], Any], seconds: float, process: "subprocess.Popen[Any]") -> None:
    """Wait until it holds; a cluster that ended meanwhile fails the test with its own words."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.1)
