"""Errors in what the node agent is given."""

from koordinator.api.errors import KoordinatorError


class SampleError(KoordinatorError, ValueError):
    """A sample or a query does not fit its kind of series; nothing of its batch is stored."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(kind, reason)
        self.kind, self.reason = kind, reason

    def __str__(self) -> str:
        return f"series {self.kind}: {self.reason}"


class ModelError(KoordinatorError, ValueError):
    """A prediction model or its checkpoint cannot be used; the model starts afresh."""

    def __init__(self, model: str, reason: str) -> None:
        super().__init__(model, reason)
        self.model, self.reason = model, reason

    def __str__(self) -> str:
        return f"model {self.model}: {self.reason}"


class NodeConfigError(KoordinatorError, ValueError):
    """Words of the kubelet or of the machine cannot be used; `field` names the place."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field, self.reason = field, reason

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"
