"""The options of a replay; apart from the replay itself, so that a command line can be read without it."""

import enum

PODS_PER_NODE = 110
"""The kubelet's default, for tables, which do not tell."""


class Order(enum.StrEnum):
    """In which order the scheduler meets the pods."""

    GIVEN = "given"
    PRIORITY = "priority"
    """The order of the scheduler's queue among pods that came together: important ones first."""
    ARRIVAL = "arrival"
    """By creation time."""


class Gpu(enum.StrEnum):
    """The meaning of the GPU columns."""

    SKIP_PODS = "skip-pods"
    """Pods that ask for GPUs are left out; all nodes take part with their CPUs and memory."""
    CPU_ONLY = "cpu-only"
    """Like `skip-pods`, and nodes with GPUs are left out, too."""
    IGNORE = "ignore"
    """All pods and nodes take part as if they had no GPUs."""
    WHOLE = "whole"
    """`nvidia.com/gpu`: a pod gets whole GPUs also for a share of one; `gpu_spec` names the models it takes."""
    SHARE = "share"
    """Cards with minors, whole or in percent, given out by DeviceShare; `gpu_spec` names the models it takes."""


class GpuScore(enum.StrEnum):
    """The score by which `--gpu share` chooses nodes and cards."""

    FRAGMENTATION_GRADIENT = "FragmentationGradient"
    MOST_ALLOCATED = "MostAllocated"
    LEAST_ALLOCATED = "LeastAllocated"
