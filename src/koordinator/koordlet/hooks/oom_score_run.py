"""Gives processes of containers their `oom_score_adj`. Source: behaviour/koordlet-act 22."""

from koordinator.koordlet.hooks import oom_score
from koordinator.koordlet.hooks.contexts import ContainerContext, Response
from koordinator.koordlet.hooks.hook import REASON, Hook
from koordinator.koordlet.hooks.registry import Level, Registry

SCORE = "oom_score_adj"


class OOMScoreAdj(Hook):
    """Pods say by annotation which of their processes the kernel kills first."""

    name = "OOMScoreAdj"

    def register(self, registry: Registry) -> None:
        registry.reconcile(Level.CONTAINER, (SCORE,), self.name, self.of_container, deliver=self._deliver)

    def of_container(self, container: ContainerContext) -> Response:
        """The score of a container's processes. Raises: ProtocolError."""
        pod = container.pod
        return Response(oom_score_adj=oom_score.score(pod.annotations, container.name, container.obj))

    def disable(self) -> None:
        """Nothing: the old score of a process is not known to be better (behaviour/koordlet-act 24)."""

    def _deliver(self, container: ContainerContext, response: Response) -> None:
        """Each process that says otherwise; one that has ended meanwhile is no problem."""
        processes, wanted = self.shared.host.processes, response.oom_score_adj
        holds = False
        for pid in self.shared.host.cgroups.procs(container.group) or ():
            score = processes.oom_score_adj(pid)
            if score is None:
                continue
            problem = None
            if score != wanted:
                problem = self.shared.executor.write_file(
                    processes.oom_score_adj_path(pid),
                    str(wanted),
                    owner=self.name,
                    reason=REASON,
                    restorable=False,
                )
            holds = holds or problem is None
        if holds and wanted is not None:
            pod = container.pod
            self.shared.metrics.oom_score_adj.set(wanted, pod.namespace, pod.name, pod.uid, container.name)
