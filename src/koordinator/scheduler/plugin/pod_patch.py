"""Collect what the scheduler writes on a pod (or a Reservation) before it is bound: one patch for all plugins.

Source: behaviour/scheduler D1.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from koordinator.api.core import Pod


class PodPatch:
    """The changes that PreBind plugins want written, collected.

    `annotations` and `labels` are set; None takes a key away. `add_finalizer` adds to those that the object
    has. `spec` and `status` are merged into the object's.
    """

    def __init__(self) -> None:
        self.annotations: dict[str, str | None] = {}
        self.labels: dict[str, str | None] = {}
        self.finalizers: list[str] = []
        self.spec: dict[str, Any] = {}
        self.status: dict[str, Any] = {}

    @property
    def is_empty(self) -> bool:
        """Return whether nobody wants anything written."""
        return not (self.annotations or self.labels or self.finalizers or self.spec or self.status)

    def add_finalizer(self, name: str) -> None:
        """Keep the object from vanishing until somebody takes the finalizer away."""
        if name not in self.finalizers:
            self.finalizers.append(name)

    def body(
        self,
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        finalizers: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Return the JSON merge patch for an object that has these; empty when there is nothing to write.

        Values that the object has already are left out. Finalizers are a list, which a merge patch replaces as a
        whole: the patch then holds all of them and is good for one version of the object only.
        """
        metadata: dict[str, Any] = {}
        for field, wanted, have in (
            ("annotations", self.annotations, annotations or {}),
            ("labels", self.labels, labels or {}),
        ):
            differing = {key: value for key, value in wanted.items() if have.get(key) != value}
            if differing:
                metadata[field] = differing
        missing = [name for name in self.finalizers if name not in finalizers]
        if missing:
            metadata["finalizers"] = [*finalizers, *missing]
        body: dict[str, Any] = {}
        if metadata:
            body["metadata"] = metadata
        if self.spec:
            body["spec"] = dict(self.spec)
        return body

    def status_body(self) -> dict[str, Any]:
        """Return the merge patch for the subresource `status`; empty when there is nothing to write."""
        return {"status": dict(self.status)} if self.status else {}


def observed(pod: Pod) -> dict[str, int]:
    """Return the member of a condition that says which generation of the pod it is about; servers before 1.33 have
    none."""
    return {"observedGeneration": pod.metadata.generation} if pod.metadata.generation else {}
