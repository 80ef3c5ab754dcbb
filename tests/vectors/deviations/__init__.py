"""The one table of where our answers differ from the reference's on purpose, by area and behaviour.

A deviation explains a case only when its condition holds there and when the reference's answer follows from it:
`Derived` works out what the reference says from what the code answers, with that one difference taken out of the
question or put into the answer, and any other difference stays a failure. Where the reference's answer cannot be
worked out, a predicate bounds what may differ. Where several deviations meet in one case, what one works out stands
for our answer when the next one is asked. Each deviation names its section of
`docs/deliberate-differences.md` and a word or two by which its line there is found.
"""

from tests.vectors.deviations import devices, gangs, host, manager, node_agent, quotas, reservations, topology
from tests.vectors.deviations.question import Derived, Deviation, Question, together

_ADMISSION = "Pods at admission"
_CONFIG = "The manager's configuration"
_LENT = "What nodes lend (Batch, Mid, devices)"
_QUOTAS = "Quotas in the scheduler"
_SUPPRESSING = "Suppressing and bursting CPU, protecting memory"
_QUOTA_AREAS = ("quota-runtime", "quota-min-scale", "quota-accounting", "quota-guarantee")

TABLE = (
    Deviation(
        "profile-draws",
        ("colocationprofile-mutate",),
        "P percent of pods are P of 100 draws, not P+1",
        _ADMISSION,
        "P of 100 draws",
        Derived(manager.with_one_draw_more),
    ),
    Deviation(
        "profile-selectors",
        ("colocationprofile-mutate",),
        "a selector that says nothing, or whose namespace is not known, matches nobody",
        _ADMISSION,
        "`namespaceSelector`",
        Derived(manager.without_unusable_selectors),
    ),
    Deviation(
        "profile-rounds",
        ("colocationprofile-mutate",),
        "what a profile makes of a waiting pod does not change with each round",
        "Profiles for pods that wait already",
        "suffixes are appended once",
        Derived(manager.with_steps_done_once),
    ),
    Deviation(
        "amounts-of-whole-pods",
        ("colocationprofile-mutate",),
        "a Batch pod holds no native CPU beside its Batch CPU",
        _ADMISSION,
        "as a whole",
        Derived(manager.without_amounts_of_whole_pods),
    ),
    Deviation(
        "sidecar-amounts",
        ("api-pod-resources",),
        "a pod whose sidecars have no Batch limits would have none itself",
        _ADMISSION,
        "names sidecars",
        Derived(manager.without_sidecars),
    ),
    Deviation(
        "disks-of-v2",
        ("cgroup-v2-convert",),
        "cgroup v2 limits disks as well",
        "Disks",
        "the reference knows v1 only",
        Derived(host.without_disks_of_v2),
    ),
    Deviation(
        "unreported-pods",
        ("noderesource-batch", "noderesource-mid"),
        "what a pod asks for is not lent away until its first report",
        _LENT,
        "`maxUsageRequest`",
        Derived(manager.without_unreported_pods),
    ),
    Deviation(
        "zones-without-results",
        ("noderesource-batch",),
        "a topology in which nothing changes is not written",
        _LENT,
        "nothing was calculated",
        Derived(manager.with_useless_updates),
    ),
    Deviation(
        "parts-of-units",
        ("noderesource-batch",),
        "what is compared is what is written",
        _LENT,
        "whole units",
        Derived(manager.with_parts_of_units),
    ),
    Deviation(
        "raw-allocatable",
        ("noderesource-batch", "noderesource-mid"),
        "what a kubelet reserves does not vanish where allocatable is amplified",
        _LENT,
        "raw allocatable",
        Derived(manager.without_raw_allocatable),
    ),
    Deviation(
        "page-cache-words",
        ("colocation-config", "slo-config-validation"),
        "a word for the page cache that a NodeMetric may not have is an invalid one",
        _CONFIG,
        "words that a NodeMetric may not have",
        Derived(manager.with_any_page_cache_word),
    ),
    Deviation(
        "endless-ratios",
        ("colocation-config",),
        "a label that is no number changes nothing",
        _CONFIG,
        "`NaN` or `Inf`",
        Derived(manager.with_percents_of_no_number),
    ),
    Deviation(
        "empty-lists",
        ("colocation-config",),
        "nothing is written for what means the same",
        _CONFIG,
        "an empty list and an absent one",
        Derived(manager.with_empty_lists_told_apart),
    ),
    Deviation(
        "malformed-bandwidth",
        ("nodeslo-merge",),
        "a mistake in one annotation does not switch off a whole section",
        _CONFIG,
        "bandwidth annotation",
        Derived(manager.without_system_strategy),
    ),
    Deviation(
        "inherited-bandwidth",
        ("nodeslo-merge",),
        "an entry that names no bandwidth does not reset it",
        _CONFIG,
        "bandwidth annotation",
        Derived(manager.with_bandwidth_reset),
    ),
    Deviation(
        "inherited-blocks",
        ("nodeslo-merge",),
        "block devices have names, not places in a list",
        _CONFIG,
        "block devices",
        Derived(manager.with_blocks_by_index),
    ),
    Deviation(
        "bandwidth-units",
        ("slo-config-validation",),
        "a quantity in bits per second is no percentage",
        _CONFIG,
        "percentages and quantities",
        Derived(manager.with_bandwidths_as_numbers),
    ),
    Deviation(
        "no-system-config",
        ("slo-config-validation",),
        "QoS settings need no system-config",
        _CONFIG,
        "no `system-config`",
        Derived(manager.with_system_config_required),
    ),
    Deviation(
        "unchecked-keys",
        ("slo-config-validation",),
        "mistakes in all keys are found",
        _CONFIG,
        "`host-application-config`",
        Derived(manager.without_keys_that_the_reference_ignores),
    ),
    Deviation(
        "quotas-in-circles",
        ("quota-webhook", "elasticquota-webhook"),
        "quotas in a circle would never get a share again",
        "Quotas at admission",
        "below itself",
        Derived(manager.with_circles),
    ),
    Deviation(
        "no-minimum",
        ("podgroup-phase",),
        "a gang without a minimum has not finished while members run",
        "Gangs: the status of PodGroups",
        "`minMember`",
        Derived(gangs.finished_at_once),
    ),
    Deviation(
        "gang-start",
        ("gang-state",),
        "one bound member is not a gang that has started, and a gang of which nothing is left starts anew (G6)",
        "Gangs",
        "(G6)",
        Derived(gangs.started_by_one),
    ),
    Deviation(
        "gang-ended-members",
        ("gang-state",),
        "members that have ended take no place (G8)",
        "Gangs",
        "(G8)",
        Derived(gangs.with_ended_members),
    ),
    Deviation(
        "gang-non-strict",
        ("gang-state",),
        "members of a NonStrict gang keep their places when another one fails (G5)",
        "Gangs",
        "(G5)",
        Derived(gangs.without_kept_places),
    ),
    Deviation(
        "gang-wakes",
        ("gang-state",),
        "whoever may start or go on is looked at when something changes, and others stand in (G4, G16)",
        "Gangs",
        "(G4)",
        Derived(gangs.waking_own),
    ),
    Deviation(
        "gang-joins",
        ("gang-state",),
        "a round is of one group (G9)",
        "Gangs",
        "(G9)",
        Derived(gangs.joining_any_round),
    ),
    Deviation(
        "gang-several",
        ("gang-state",),
        "G4, G5, G6, G8 and G16 together",
        "Gangs",
        "(G6)",
        Derived(gangs.with_all_gaps),
    ),
    Deviation(
        "reservation-last-moment",
        ("reservation-phase",),
        "a reservation of which exactly no time is left ends in the next moment",
        "Reservations",
        "exactly no time",
        Derived(reservations.not_looked_at_in_the_last_moment),
    ),
    Deviation(
        "reservation-garbage",
        ("reservation-phase",),
        "whatever ended is collected some day",
        "Reservations",
        "for a reason of somebody",
        Derived(reservations.collected_for_known_ends_only),
    ),
    Deviation(
        "nameless-groups",
        ("gang-config-parse",),
        "a group with a gang that nobody can name would never get complete (G15)",
        "Gangs",
        "(G15)",
        Derived(gangs.with_nameless_groups),
    ),
    Deviation(
        "nodes-of-one-cost",
        ("gang-preemption",),
        "fewer jobs run for nothing",
        "Job preemption",
        "nodes that cost the same",
        Derived(gangs.with_costs_on_each_node),
    ),
    Deviation(
        "pods-that-leave",
        ("gang-preemption",),
        "pods that leave anyhow cost nothing",
        "Job preemption",
        "pods that are being deleted",
        Derived(gangs.with_those_that_leave),
    ),
    Deviation(
        "priorities-of-a-job",
        ("gang-preemption",),
        "what a job costs does not depend on the order of a list",
        "Job preemption",
        "several priorities on a node",
        Derived(gangs.with_priorities_listed_first),
    ),
    Deviation(
        "job-victims",
        ("gang-preemption",),
        "fewer jobs run for nothing",
        "Job preemption",
        "equally important pods",
        gangs.breaks_no_more_jobs,
    ),
    Deviation(
        "pods-without-a-job",
        ("gang-preemption",),
        "pods on their own are no job together (G18)",
        "Job preemption",
        "(G18)",
        Derived(gangs.with_one_job_of_the_jobless),
    ),
    Deviation(
        "switches-of-one-name",
        ("topology-tree",),
        "a name below two parents stands for two switches (G14)",
        "Network topology",
        "(G14)",
        Derived(topology.tree_of_first_parents),
    ),
    Deviation(
        "switches-of-one-name",
        ("topology-placement", "topology-score"),
        "a name below two parents stands for two switches (G14)",
        "Network topology",
        "(G14)",
        Derived(topology.below_first_parents),
    ),
    Deviation(
        "slots-by-kind",
        ("topology-placement",),
        "a node takes of members that differ as many as of each kind, whatever their order",
        "Network topology",
        "members that differ",
        Derived(topology.with_slots_in_turn),
    ),
    Deviation(
        "multiples-by-layer",
        ("topology-placement",),
        "a place takes members in multiples of all layers at and below it, and other layers are tried (G12)",
        "Network topology",
        "(G12)",
        Derived(topology.with_multiples_by_layer),
    ),
    Deviation(
        "unknown-layers",
        ("topology-placement",),
        "nobody can gather below a place of a layer that is not there",
        "Network topology",
        "a layer that the tree lacks",
        Derived(topology.without_unknown_layers),
    ),
    Deviation(
        "preferred-layers",
        ("topology-placement",),
        "PreferGather chooses between places that hold the gang (G11)",
        "Network topology",
        "PreferGather",
        Derived(topology.without_preferences),
    ),
    Deviation(
        "unrequested-resources",
        ("quota-admission",),
        "a pod is refused for what it asks for, not for what others use too much of",
        _QUOTAS,
        "above its limit",
        Derived(quotas.with_all_resources_asked_for),
    ),
    Deviation(
        "over-use-of-the-last-pod",
        ("quota-overuse-revoke",),
        "whom to evict does not depend on what the last pod asks for",
        _QUOTAS,
        "over-use",
        Derived(quotas.judged_by_the_last_pod),
    ),
    Deviation(
        "recounted-pods",
        _QUOTA_AREAS,
        "pods count with the resources that their quota names now",
        _QUOTAS,
        "other resources",
        Derived(quotas.counted_once),
    ),
    Deviation(
        "requests-of-former-children",
        _QUOTA_AREAS,
        "a parent loses with a child what the child brought, not what it asked for",
        _QUOTAS,
        "whose request is above its maximum",
        Derived(quotas.taken_as_a_whole),
    ),
    Deviation(
        "minima-scaled-at-once",
        _QUOTA_AREAS,
        "runtimes do not depend on who was asked for first",
        _QUOTAS,
        "minima",
        quotas.scaled_on_demand,
    ),
    Deviation(
        "pods-of-parents",
        _QUOTA_AREAS,
        "what pods in a parent use, its children do not share",
        _QUOTAS,
        "`SupportParentQuotaSubmitPod`",
        Derived(quotas.shared_with_pods_of_parents),
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
        "young-pods-that-ended",
        ("prod-reclaimable",),
        "pods that have ended hold nothing",
        "The node agent's predictions and reports",
        "finished pods younger",
        Derived(node_agent.with_young_pods_that_ended),
    ),
    Deviation(
        "memory-ratios",
        ("device-request-normalise",),
        "29 of 100 are 29 percent",
        "Devices in the scheduler",
        "floating point",
        Derived(devices.with_ratios_in_floating_point),
    ),
    Deviation(
        "owners-of-v1",
        ("reservation-match",),
        "a pod is of v1, also where a watch does not say so",
        "Reservations",
        "`apiVersion: v1`",
        Derived(reservations.with_api_versions_of_pods),
    ),
    Deviation(
        "pools-without-cpus",
        ("cpuset-hook",),
        "a list of CPUs has no empty item",
        "Runtime hooks",
        "without CPUs",
        Derived(node_agent.with_pools_without_cpus),
    ),
    Deviation(
        "bounds-of-disks",
        ("slo-config-validation",),
        "a configuration of which no NodeSLO can be made is refused",
        _CONFIG,
        "`ioCfg`",
        Derived(manager.without_bounds_of_disks),
    ),
    Deviation(
        "fractions-of-third-parties",
        ("yarn-batch-subtract",),
        "no part of a unit is offered twice",
        "Sharing with YARN",
        "fractions of units",
        Derived(manager.with_fractions_left),
    ),
    Deviation(
        "unrequested-native-resources",
        ("reservation-allocate-policy",),
        "a pod does not wait for what it does not ask for",
        "Reservations",
        "less than none",
        Derived(reservations.with_all_native_resources),
    ),
)


MOST_AT_ONCE = 3


def deviation_of(area: str, question: Question) -> Deviation | None:
    """The fewest deviations of the area that explain together why both answers differ, None when none do."""
    known = tuple(each for each in TABLE if area in each.areas)
    counts = range(1, min(MOST_AT_ONCE, len(known)) + 1)
    return next(filter(None, (_explaining(known, question, count) for count in counts)), None)


def _explaining(known: tuple[Deviation, ...], question: Question, count: int) -> Deviation | None:
    """As many deviations: the last one asked for the difference between `expected` and what the others make of ours."""
    if count == 1:
        return next((each for each in known if each.explains(question)), None)
    for each in known:
        if isinstance(each.explains, Derived):
            rest = tuple(other for other in known if other is not each)
            found = _explaining(rest, each.explains.taken_for_ours(question), count - 1)
            if found is not None:
                return together(each, found)
    return None
