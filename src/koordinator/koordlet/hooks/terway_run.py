"""Tells Terway which bandwidth pods may have, in two files. Source: behaviour/koordlet-act 21."""

import contextlib
import functools
import logging
import os
from typing import Any

import msgspec

from koordinator.api.annotations import koordlet as annotations
from koordinator.api.errors import KoordinatorError
from koordinator.api.qos import KubeQoS, QoSClass
from koordinator.host.files import FileProblem, problem_of
from koordinator.koordlet.hooks import tc
from koordinator.koordlet.hooks.hook import REASON, Hook, HookRegistry, HookTools
from koordinator.koordlet.hooks.tc import NetworkRule
from koordinator.koordlet.node_pods import PodRecord
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.view import Topic

log = logging.getLogger(__name__)

DIRECTORY = "terway/qos"
NODE_FILE, PODS_FILE = "global_bps_config", "pod.json"
_PRIORITIES = {QoSClass.SYSTEM: 0, QoSClass.LSE: 1, QoSClass.LSR: 1, QoSClass.LS: 1, QoSClass.BE: 2}
_BITS_PER_BYTE = 8


def node_text(rule: NetworkRule) -> str:
    """Return what the classes may send and receive, in bytes per second: l1 is services, l2 best-effort pods."""
    total = rule.total_bits
    lines = {"hw_tx_bps_max": total // _BITS_PER_BYTE, "hw_rx_bps_max": total // _BITS_PER_BYTE}
    for level, settings in (("l1", rule.service), ("l2", rule.best_effort)):
        is_on = settings is not None and bool(settings.enable)
        for way, request, limit in (
            ("tx", settings.egress_request, settings.egress_limit) if is_on and settings else ("tx", 0, 0),
            ("rx", settings.ingress_request, settings.ingress_limit) if is_on and settings else ("rx", 0, 0),
        ):
            for end, amount in (("min", request), ("max", limit)):
                bits = tc.amount_bits(amount, total)
                lines[f"offline_{level}_{way}_bps_{end}"] = bits // _BITS_PER_BYTE
    return "".join(f"{name} {value}\n" for name, value in lines.items())


def pod_entry(record: PodRecord) -> dict[str, Any]:
    """Return what one pod may send and receive, and how important it is. Raises: ProtocolError."""
    pod = record.pod
    limits = annotations.terway_network_limits(pod.metadata.annotations, f"Pod {record.key}")
    by_kube = 2 if record.kube_qos is KubeQoS.BEST_EFFORT else 1
    return {
        "podName": pod.metadata.name,
        "podNamespace": pod.metadata.namespace,
        "podUID": record.uid,
        "prio": _PRIORITIES.get(record.qos, by_kube),
        "cgroupDir": record.group,
        "qosConfig": {
            "ingressBandwidth": limits.ingress_bytes_per_s if limits is not None else 0,
            "egressBandwidth": limits.egress_bytes_per_s if limits is not None else 0,
        },
    }


class TerwayQoS(Hook):
    """Terway limits the traffic; here it is told what to do."""

    name = "TerwayQoS"

    def __init__(self, shared: Shared, tools: HookTools) -> None:
        super().__init__(shared, tools)
        self._rule = self.rule((Topic.NODE_SLO, Topic.ALLOWANCE), lambda: tc.rule_of(shared.view), None)
        self._texts: dict[str, str] = {}
        """Contents that were written to the files."""
        self._problems: dict[str, str] = {}

    def register(self, registry: HookRegistry) -> None:
        """Nothing of a pod's own is written: Terway reads the files."""

    def on_pods(self) -> None:
        """Write both files when what they say has changed; remove them when the policy is another one."""
        rule = self._rule.value
        if rule is None:
            return
        if rule.policy != tc.TERWAY:
            self._remove()
            return
        entries = {}
        for uid, record in sorted(self.shared.view.pods.items()):
            if record.is_active:
                with contextlib.suppress(KoordinatorError):  # a broken annotation limits nothing
                    entries[uid] = pod_entry(record)
        self._hold(NODE_FILE, node_text(rule))
        if self.shared.view.has_pods:
            self._hold(PODS_FILE, msgspec.json.encode(entries).decode())

    def disable(self) -> None:
        """Both files go, if we made them."""
        if self.shared.executor.changed_by(self.name):
            self._remove()
            super().disable()

    def _remove(self) -> None:
        for name in (NODE_FILE, PODS_FILE):
            path = f"{self._directory()}/{name}"
            if self.shared.host.files.exists(path):
                remove = functools.partial(_removed, path)
                self.shared.executor.perform(path, "no file", remove, self.name, REASON)
        self._texts.clear()

    def _hold(self, name: str, text: str) -> None:
        path = f"{self._directory()}/{name}"
        if self._texts.get(path) == text and self.shared.host.files.exists(path):
            return
        if self.shared.host.files.read(path) != text:
            problem = self.shared.executor.perform(
                path, text, functools.partial(self._replace, path, text), self.name, REASON
            )
            self._report_problem(path, "" if problem is None else str(problem))
            if problem is not None:
                return
        self._texts[path] = text

    def _report_problem(self, path: str, problem: str) -> None:
        """Say once that Terway hears nothing: its directory may not be mounted into our container."""
        if problem and problem != self._problems.get(path):
            log.warning("Terway configuration not written", extra={"problem": problem})
        self._problems[path] = problem

    def _directory(self) -> str:
        """`/var/lib/terway/qos` of the host; the folder is mounted beside that of `/var/run`."""
        var_run = self.shared.host.roots.var_run
        base = var_run.removesuffix("run") + "lib" if var_run.endswith("run") else "/var/lib"
        return f"{base}/{DIRECTORY}"

    def _replace(self, path: str, text: str) -> FileProblem | None:
        """A file that is read at any time must never be half written."""
        temporary, directory = f"{path}.tmp", os.path.dirname(path)
        try:
            os.makedirs(directory, exist_ok=True)
            self.shared.executor.note(directory, "files", owner=self.name)
            with open(temporary, "w") as file:
                file.write(text)
            os.replace(temporary, path)
        except OSError as error:
            return problem_of(path, error)
        return None


def _removed(path: str) -> FileProblem | None:
    try:
        os.remove(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return problem_of(path, error)
    return None
