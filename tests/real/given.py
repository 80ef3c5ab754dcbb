"""A cluster that somebody gave us: `KOORDINATOR_TEST_KUBECONFIG=FILE`. Without this variable none is ever touched.

Its API server cannot reach processes of this machine. So there are no webhook configurations on it and no manager for
it, which does not run without them. No workload is installed either. What we bring is taken away again; where any of it
is there already, nothing is touched.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest

from koordinator.install import text
from koordinator.install.values import Values
from tests.e2e.cluster import Cluster
from tests.real import components
from tests.real.components import START_S, Scheduler

FILE = os.environ.get("KOORDINATOR_TEST_KUBECONFIG", "")
NAMESPACE = "koordinator-test"
"""Where our pods live on it."""
_CALLED = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")


class GivenCluster(Cluster):
    """The scheduler is a process here, with a token of its ServiceAccount there."""

    def __init__(self, folder: Path, kubeconfig: Path) -> None:
        self.folder = folder
        self.kubeconfig = kubeconfig
        bodies = components.installed(Values(), workloads=False)
        self.documents = text.documents([body for body in bodies if body["kind"] not in _CALLED])
        self.scheduler: Scheduler | None = None

    @classmethod
    @contextmanager
    def open(cls, folder: Path, kubeconfig: Path) -> Iterator[Self]:
        """Inside it runs. Skips where an installation is there, since that one is somebody's."""
        cluster = cls(folder, kubeconfig)
        there = cluster.run("get", "-f", "-", "--ignore-not-found", "-o", "name", text=cluster.documents)
        namespace = cluster.run("get", "namespace", NAMESPACE, "--ignore-not-found", "-o", "name")
        found = (namespace.stdout + there.stdout).split()
        if found:
            pytest.skip(f"the given cluster has {found[0]} already: nothing is touched")
        assert namespace.returncode == 0, f"{kubeconfig}: {namespace.stderr}"
        try:
            cluster._start()
            yield cluster
        finally:
            cluster._leave()

    def _start(self) -> None:
        self.install()
        self.kubectl("create", "namespace", NAMESPACE)
        self.scheduler = Scheduler(
            self.folder, self.identity("koord-scheduler"), Values(), name="koord-scheduler"
        )
        self.process = self.scheduler.process
        self.scheduler.wait(self.scheduler.is_ready, START_S, "is ready")

    def install(self) -> "subprocess.CompletedProcess[str]":
        done = self.run("apply", "--server-side", "-f", "-", text=self.documents)
        assert done.returncode == 0, done.stderr
        return done

    def identity(self, account: str) -> Path:
        """The kubeconfig of a ServiceAccount of the installation: it may do what its role allows."""
        system = Values().installation.namespace
        token = self.kubectl("-n", system, "create", "token", account, "--duration=1h").strip()
        content = json.loads(self.kubectl("config", "view", "--raw", "--minify", "--flatten", "-o", "json"))
        content["users"][0]["user"] = {"token": token}
        path = self.folder / f"{account}.kubeconfig"
        path.write_text(json.dumps(content))
        path.chmod(0o600)
        return path

    def _leave(self) -> None:
        """What we brought goes, and nothing else."""
        if self.scheduler is not None:
            self.scheduler.kill()
        gone = ("--ignore-not-found", "--wait=true", "--timeout=80s")
        deleted = [
            self.run("delete", "namespace", NAMESPACE, *gone),
            self.run("delete", "-f", "-", *gone, text=self.documents),
        ]
        left = [done.stderr for done in deleted if done.returncode]
        assert not left, f"left on the given cluster: {left}"
