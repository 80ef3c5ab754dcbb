"""Where the node agent answers otherwise than the reference on purpose: a part of the table of deviations."""

from tests.vectors.deviations import host, node_agent
from tests.vectors.deviations.question import Derived, Deviation

_SUPPRESSING = "Suppressing and bursting CPU, protecting memory"

TABLE = (
    Deviation(
        "disks-of-v2",
        ("cgroup-v2-convert",),
        "cgroup v2 limits disks as well",
        "Disks",
        "the reference knows v1 only",
        Derived(host.without_disks_of_v2),
    ),
    Deviation(
        "bucket-remainder",
        ("cpu-burst",),
        "a loop that is a little faster than a second pays, too",
        _SUPPRESSING,
        "fractions of seconds",
        Derived(node_agent.with_whole_seconds),
    ),
    Deviation(
        "partial-picks",
        ("cpu-suppress",),
        "batch has all CPUs that are left when it may have more",
        _SUPPRESSING,
        "with fewer than wanted",
        Derived(node_agent.with_partial_picks),
    ),
    Deviation(
        "pinned-quotas",
        ("cpu-burst",),
        "a quota that another hook has lifted stays lifted",
        _SUPPRESSING,
        "another hook's",
        Derived(node_agent.with_pinned_quotas),
    ),
    Deviation(
        "narrow-ways",
        ("resctrl-schemata",),
        "the kernel refuses a mask of no way",
        "Caches and memory bandwidth (resctrl)",
        "narrow range",
        Derived(node_agent.without_narrow_ways),
    ),
    Deviation(
        "caches-of-other-machines",
        ("resctrl-schemata",),
        "one manifest serves machines with more and with fewer caches",
        "Caches and memory bandwidth (resctrl)",
        "does not have",
        Derived(node_agent.with_caches_of_other_machines),
    ),
    Deviation(
        "requests-of-ended-pods",
        ("cpu-evict", "memory-evict"),
        "pods that have ended hold nothing, so nobody is evicted for it",
        "Evicting pods from a node",
        "what they requested does not count",
        Derived(node_agent.with_requests_of_ended_pods),
    ),
    Deviation(
        "protected-pods",
        ("cpu-evict", "memory-evict"),
        "services of the two highest classes are never evicted, whatever their other labels say",
        "Evicting pods from a node",
        "LSE or LSR",
        Derived(node_agent.with_protected_pods),
    ),
    Deviation(
        "thousandfold-memory",
        ("memory-evict",),
        "victims are evicted until enough memory comes back",
        "Evicting pods from a node",
        "a thousand times",
        Derived(node_agent.with_a_thousand_of_each_byte),
    ),
    Deviation(
        "hasty-later-tasks",
        ("evict-common", "cpu-evict", "memory-evict"),
        "victims are evicted until enough comes back",
        "Evicting pods from a node",
        "of one target",
        Derived(node_agent.with_hasty_later_tasks),
    ),
    Deviation(
        "young-pods-that-ended",
        ("prod-reclaimable",),
        "pods that have ended hold nothing",
        "The node agent's predictions and reports",
        "finished pods younger",
        Derived(node_agent.with_young_pods_that_ended),
    ),
    Deviation(
        "wide-lists-of-cpus",
        ("resource-update-order",),
        "containers leave CPUs that are not theirs at once",
        _SUPPRESSING,
        "list of CPUs that moves",
        Derived(node_agent.with_wide_lists_of_cpus),
    ),
    Deviation(
        "pools-without-cpus",
        ("cpuset-hook",),
        "a list of CPUs has no empty item",
        "Runtime hooks",
        "without CPUs",
        Derived(node_agent.with_pools_without_cpus),
    ),
)
