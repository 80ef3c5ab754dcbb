"""Decide which processes the kernel kills first: `oom_score_adj` of containers. Source: behaviour/koordlet-act 22."""

from collections.abc import Mapping

from koordinator.api.annotations import koordlet as annotations_of
from koordinator.api.annotations.koordlet import OOMScoreRangeError
from koordinator.koordlet.hooks.contexts import ContainerContext, HookResponse, HookStage
from koordinator.koordlet.hooks.hook import REASON, Hook, HookRegistry, ReconcileLevel


def score(annotations: Mapping[str, str], container: str, obj: str = "") -> int | None:
    """Return the score for every process of the container, its own value before the pod's; None leaves them alone.

    A value out of range is left alone, too. Raises: ProtocolError when an annotation is malformed; a malformed
    list of containers hides the pod's value.
    """
    try:
        return annotations_of.oom_score_adj(annotations, container, obj)
    except OOMScoreRangeError:
        return None


SCORE = "oom_score_adj"


class OOMScoreAdj(Hook):
    """Pods say by annotation which of their processes the kernel kills first."""

    name = "OOMScoreAdj"

    def register(self, registry: HookRegistry) -> None:
        registry.at_stage(HookStage.PRE_CREATE_CONTAINER, self.name, self.of_container)
        registry.reconcile(
            ReconcileLevel.CONTAINER, (SCORE,), self.name, self.of_container, deliver=self._deliver
        )

    def of_container(self, container: ContainerContext) -> HookResponse:
        """Return the score of a container's processes. Raises: ProtocolError."""
        pod = container.pod
        return HookResponse(oom_score_adj=score(pod.annotations, container.name, container.obj))

    def disable(self) -> None:
        """Nothing: the old score of a process is not known to be better (behaviour/koordlet-act 24)."""

    def _deliver(self, container: ContainerContext, response: HookResponse) -> None:
        """Set the score of each process that has another one; one that has ended meanwhile is no problem."""
        processes, wanted = self.shared.host.processes, response.oom_score_adj
        holds = False
        for pid in self.shared.host.cgroups.procs(container.group) or ():
            own = processes.oom_score_adj(pid)
            if own is None:
                continue
            problem = None
            if own != wanted:
                problem = self.shared.executor.write_file(
                    processes.oom_score_adj_path(pid),
                    str(wanted),
                    owner=self.name,
                    reason=REASON,
                    restorable=False,
                    group=container.group,
                )
            holds = holds or problem is None
        if holds and wanted is not None:
            pod = container.pod
            self.shared.metrics.oom_score_adj.set(wanted, pod.namespace, pod.name, pod.uid, container.name)
