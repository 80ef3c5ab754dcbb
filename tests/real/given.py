"""A cluster that somebody gave us: `KOORDINATOR_TEST_KUBECONFIG=FILE`. Without this variable none is ever touched.

Where its API server reaches this machine's loopback, the manager runs here, too, and its webhooks are called by URL.
Elsewhere (on other machines, in containers) there are no webhook configurations on it and no manager for it, which does
not run without them. No workload is installed. What we bring is taken away again; where any of it is there already,
nothing is touched.
"""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import pytest

from koordinator.install import text
from koordinator.install.values import Values
from tests.e2e.cluster import Cluster
from tests.real import components
from tests.real.components import START_S, Manager, Scheduler

FILE = os.environ.get("KOORDINATOR_TEST_KUBECONFIG", "")
NAMESPACE = "koordinator-test"
"""Where our pods live on it."""
CALL_S = 30.0
AGAINST_THE_RULES = (
    *("--image=x", "--dry-run=server", "-n", NAMESPACE),
    *("--labels", "koordinator.sh/qosClass=LSR,koordinator.sh/priority-class=koord-batch"),
)
_CALLED = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")


class GivenCluster(Cluster):
    """Scheduler and manager are processes here, with tokens of their ServiceAccounts there."""

    def __init__(self, folder: Path, kubeconfig: Path) -> None:
        self.folder = folder
        self.kubeconfig = kubeconfig
        self.is_near = self._is_near()
        bodies = components.installed(Values(), workloads=False)
        self._webhooks = text.documents([body for body in bodies if body["kind"] in _CALLED])
        self.documents = text.documents(
            [body for body in bodies if self.is_near or body["kind"] not in _CALLED]
        )
        self.scheduler: Scheduler | None = None
        self.manager: Manager | None = None

    def _is_near(self) -> bool:
        """Whether its API server may be on this machine."""
        server = "-o=jsonpath={.clusters[0].cluster.server}"
        host = urlsplit(self.kubectl("config", "view", "--minify", server)).hostname
        return host in ("127.0.0.1", "localhost", "::1")

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
        if self.is_near:
            account = self.identity("koord-manager")
            self.manager = Manager(self.folder, account, Values(), name="koord-manager", by_url=True)
            self.manager.wait(self.manager.is_ready, START_S, "is ready")
            if not self._calls():
                self._end_manager()

    def _calls(self) -> bool:
        """Whether the API server reaches the webhooks: it may be in a container, whose loopback is another."""
        deadline = time.monotonic() + CALL_S
        while time.monotonic() < deadline:
            if "denied the request" in self.run("run", "refused", *AGAINST_THE_RULES).stderr:
                return True
            time.sleep(1)
        return False

    def _end_manager(self) -> None:
        """What the API server would call goes before whoever answers."""
        done = self.run("delete", "-f", "-", "--ignore-not-found", text=self._webhooks)
        assert done.returncode == 0, done.stderr
        if self.manager is not None:
            self.manager.kill()
            self.manager = None

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
        gone = ("--ignore-not-found", "--wait=true", "--timeout=80s")
        self._end_manager()
        if self.scheduler is not None:
            self.scheduler.kill()
        deleted = [
            self.run("delete", "namespace", NAMESPACE, *gone),
            self.run("delete", "-f", "-", *gone, text=self.documents),
        ]
        left = [done.stderr for done in deleted if done.returncode]
        assert not left, f"left on the given cluster: {left}"
