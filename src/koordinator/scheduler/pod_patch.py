"""What the scheduler writes on a pod before it binds it: one patch for all plugins."""

from typing import Any


class PodPatch:
    """Labels and annotations to set, collected by PreBind plugins."""

    def __init__(self) -> None:
        self.annotations: dict[str, str] = {}
        self.labels: dict[str, str] = {}

    def body(self) -> dict[str, Any]:
        """The JSON merge patch; empty when there is nothing to write."""
        metadata: dict[str, Any] = {}
        if self.annotations:
            metadata["annotations"] = dict(self.annotations)
        if self.labels:
            metadata["labels"] = dict(self.labels)
        return {"metadata": metadata} if metadata else {}
