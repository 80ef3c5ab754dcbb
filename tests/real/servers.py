"""etcd, kube-apiserver and kube-controller-manager of one test: on loopback, with RBAC, all defaults else."""

import base64
import contextlib
import ssl
import subprocess
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from tests.free_ports import free_port
from tests.real import binaries
from tests.real.certificates import Authority
from tests.real.pod_network import PodNetwork
from tests.real.processes import Program

START_S = 120.0
"""Some ten seconds of CPU time, which take long on a machine that does much else."""
HOST = "127.0.0.1"
_SERVICES = "10.96.0.0/16"


class Servers:
    """`start`, then `close`. Everything lies in `folder`; etcd's data in memory where the machine allows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder)
        self._memory = tempfile.TemporaryDirectory(prefix="koordinator-etcd-", dir=_fast_folder())
        # The path of a Unix socket may have 108 characters only.
        self.network = PodNetwork(Path(self._memory.name))
        self._programs: list[Program] = []
        self._port = free_port()
        self.url = f"https://{HOST}:{self._port}"
        self.kubeconfig = folder / "kubeconfig"
        self.etcd: Program
        self.apiserver: Program
        self.controllers: Program
        self.scheduler: Program

    def start(
        self,
        *,
        controllers: bool = True,
        apiserver_flags: tuple[str, ...] = (),
        controller_flags: tuple[str, ...] = (),
        scheduler: dict[str, Any] | None = None,
    ) -> None:
        """Until the API server is ready. With a KubeSchedulerConfiguration kube-scheduler runs, too.

        Raises: binaries.Missing; AssertionError with a program's last words.
        """
        found = binaries.located()
        self.authority.server("apiserver", (HOST, "10.96.0.1"))
        self.authority.client("front-proxy", "front-proxy-client")
        self.authority.client("kubelet-client", "kube-apiserver-kubelet-client", "system:masters")
        self.authority.key_pair("service-account")
        (self.folder / "egress.yaml").write_text(self.network.configuration())
        etcd_url = self._start_etcd(found["etcd"])
        self.apiserver = self._program(
            found["kube-apiserver"], *self._apiserver_flags(etcd_url), *apiserver_flags
        )
        self.write_kubeconfig(self.kubeconfig, "administrator", "system:masters")
        self.wait_ready()
        if controllers:
            self._start_controllers(found["kube-controller-manager"], controller_flags)
        if scheduler is not None:
            self.start_scheduler(binaries.located(("kube-scheduler",))["kube-scheduler"], scheduler)

    def _start_etcd(self, program: Path) -> str:
        url, peer_url = (f"http://{HOST}:{free_port()}" for _ in range(2))
        self.etcd = self._program(
            program,
            f"--data-dir={self._memory.name}/etcd",
            *(f"--listen-client-urls={url}", f"--advertise-client-urls={url}"),
            *(f"--listen-peer-urls={peer_url}", f"--initial-advertise-peer-urls={peer_url}"),
            f"--initial-cluster=default={peer_url}",
            *_progress_notifications(program),
        )
        self.etcd.wait(lambda: _answers(f"{url}/health"), START_S, "is healthy")
        return url

    def _apiserver_flags(self, etcd_url: str) -> tuple[str, ...]:
        pki = self.folder
        return (
            *(f"--etcd-servers={etcd_url}", f"--bind-address={HOST}", f"--secure-port={self._port}"),
            # There is no address that pods could reach it by.
            "--endpoint-reconciler-type=none",
            f"--service-cluster-ip-range={_SERVICES}",
            *("--authorization-mode=Node,RBAC", f"--client-ca-file={pki}/ca.crt"),
            *(f"--tls-cert-file={pki}/apiserver.crt", f"--tls-private-key-file={pki}/apiserver.key"),
            *(
                f"--service-account-issuer={self.url}",
                f"--service-account-key-file={pki}/service-account.pub",
            ),
            f"--service-account-signing-key-file={pki}/service-account.key",
            *(
                f"--requestheader-client-ca-file={pki}/ca.crt",
                "--requestheader-allowed-names=front-proxy-client",
            ),
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            *(
                f"--proxy-client-cert-file={pki}/front-proxy.crt",
                f"--proxy-client-key-file={pki}/front-proxy.key",
            ),
            "--enable-aggregator-routing=true",
            "--allow-privileged=true",
            f"--egress-selector-config-file={pki}/egress.yaml",
            f"--kubelet-client-certificate={pki}/kubelet-client.crt",
            f"--kubelet-client-key={pki}/kubelet-client.key",
        )

    def _start_controllers(self, program: Path, flags: tuple[str, ...]) -> None:
        kubeconfig = self.folder / "controllers.kubeconfig"
        self.write_kubeconfig(kubeconfig, "system:kube-controller-manager")
        self.controllers = self._program(
            program,
            *(f"--kubeconfig={kubeconfig}", "--use-service-account-credentials=true"),
            *("--leader-elect=false", "--secure-port=0"),
            f"--service-account-private-key-file={self.folder}/service-account.key",
            f"--root-ca-file={self.folder}/ca.crt",
            f"--cluster-signing-cert-file={self.folder}/ca.crt",
            f"--cluster-signing-key-file={self.folder}/ca.key",
            *flags,
        )

    def start_scheduler(
        self,
        program: Path,
        configuration: dict[str, Any],
        *groups: str,
        flags: tuple[str, ...] = (),
    ) -> None:
        """One with this configuration, as `system:kube-scheduler`, and a member of the groups."""
        kubeconfig, path = (self.folder / f"scheduler.{end}" for end in ("kubeconfig", "yaml"))
        self.write_kubeconfig(kubeconfig, "system:kube-scheduler", *groups)
        client = {"kubeconfig": str(kubeconfig), "qps": 2000, "burst": 4000}
        path.write_text(yaml.safe_dump({**configuration, "clientConnection": client}))
        port = free_port()
        self.scheduler = self._program(
            program, f"--config={path}", f"--bind-address={HOST}", f"--secure-port={port}", *flags
        )
        own = ssl._create_unverified_context()  # it signs its certificate itself
        self.scheduler.wait(lambda: _answers(f"https://{HOST}:{port}/healthz", own), START_S, "is ready")

    def _program(self, path: Path, *arguments: str) -> Program:
        started = Program(path.name, [str(path), *arguments], self.folder / f"{path.name}.log")
        self._programs.append(started)
        return started

    def wait_ready(self) -> None:
        self.apiserver.wait(self.is_ready, START_S, "is ready")

    def is_ready(self) -> bool:
        trust = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        return _answers(f"{self.url}/readyz", trust)

    def write_kubeconfig(self, path: Path, user: str, *groups: str) -> None:
        """For a user with a client certificate."""
        certificate, key = self.authority.client(path.stem, user, *groups)
        encoded = {"client-certificate-data": certificate, "client-key-data": key}
        self.write_kubeconfig_of(
            path, {name: base64.b64encode(value).decode() for name, value in encoded.items()}
        )

    def write_kubeconfig_of(
        self, path: Path, credentials: dict[str, str], *, url: str = "", extension: Any = None
    ) -> None:
        """`url`: another way to the same server, through a proxy."""
        cluster: dict[str, Any] = {
            "server": url or self.url,
            "certificate-authority-data": base64.b64encode(self.authority.certificate).decode(),
        }
        if extension is not None:
            cluster["extensions"] = [{"name": "koordinator", "extension": extension}]
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "real", "cluster": cluster}],
            "users": [{"name": "user", "user": credentials}],
            "contexts": [{"name": "real", "context": {"cluster": "real", "user": "user"}}],
            "current-context": "real",
        }
        # Somebody may wait for the file: it is never there in part.
        unfinished = path.with_suffix(".part")
        unfinished.write_text(yaml.safe_dump(content))
        unfinished.rename(path)

    def close(self) -> None:
        """Nothing is left running. Everything is killed: nobody needs the data."""
        for program in reversed(self._programs):
            with contextlib.suppress(ProcessLookupError):
                program.kill()
        self.network.close()
        self._memory.cleanup()


def _progress_notifications(etcd: Path) -> list[str]:
    """How far quiet watches are is told every few seconds, as in clusters; etcd 3.6 renamed the flag."""
    known = subprocess.run([str(etcd), "--help"], capture_output=True, text=True, timeout=START_S)
    flags = (f"--{prefix}watch-progress-notify-interval" for prefix in ("", "experimental-"))
    return next(([f"{flag}=5s"] for flag in flags if flag in known.stdout + known.stderr), [])


def _fast_folder() -> str | None:
    """etcd waits for the disk at every write."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _answers(url: str, trust: ssl.SSLContext | None = None) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5, context=trust) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
