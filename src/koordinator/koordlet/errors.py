"""Errors in what the node agent is given."""

from koordinator.api.errors import SubjectError


class SampleError(SubjectError, ValueError):
    """A sample or a query does not fit its kind of series; nothing of its batch is stored."""

    kind = "series "


class ModelError(SubjectError, ValueError):
    """A prediction model or its checkpoint cannot be used; the model starts afresh."""

    kind = "model "


class NodeConfigError(SubjectError, ValueError):
    """Words of the kubelet or of the machine, at the place named, cannot be used."""
