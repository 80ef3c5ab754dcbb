"""Documented differences of gangs that no row of the table explains, and why. Keys are words of their rows."""

_MACHINE = "cases play decisions: they have no queue, clock, API server, quotas or several profiles"
_OPEN = "what the reference answers cannot be worked out from our answer, so a case that shows it fails"
_PART = "another row of the table works it out together with its own difference"
_NO_MINIMUM = "cases give members, and no minimum"

UNSEEN = {
    "Gangs": {
        "left half bound when it died": _MACHINE,
        "whose binding fails": _MACHINE,
        "bound members of a group that has not started": _PART,  # (G6)
        "order of the members of a round": _OPEN,
        "when a PodGroup of it is gone": _OPEN,
        "while others of the group are being bound": _OPEN,
        "a pod that another scheduler binds": _OPEN,
        "(G7)": _OPEN,
        "another minimum, policy or list": _PART,  # (G4)
        "that is made again": _OPEN,
        "that describe a gang themselves": _OPEN,
        "a member that is deleted while": _OPEN,
        "asked for all that the group lacks": _MACHINE,
        "surely have no room": _MACHINE,
        "would not fit even without": _MACHINE,
        "for the reason of the last one": _MACHINE,
        "that its quota has no room for": _MACHINE,
        "a malformed description": _MACHINE,
        "several profiles": _MACHINE,
    },
    "Gangs: the status of PodGroups": {
        "is looked at again while members are alive": _OPEN,
        "more than 48 h": _OPEN,
        "Counters are written once a second": _MACHINE,
        "Members are counted as the watch": _MACHINE,
        "(its uid)": _MACHINE,
        "CRD of scheduler-plugins": _MACHINE,
    },
    "Network topology": {
        "(G10)": "the adapter assigns members by name, as the reference does",
        "more members than the minimum": _NO_MINIMUM,
        "members that run (G11)": "cases have no members that run",
        "(G13)": "the reference crashes, which is no answer",
        "a refused ClusterNetworkTopology": _MACHINE,
        "waits for the tree": _MACHINE,
        "that was refused as a whole": _MACHINE,
        "no longer takes its member": _MACHINE,
        "nominated node that is not the planned one": _MACHINE,
    },
    "Job preemption": {
        "(G2)": _OPEN,
        "(G3)": _OPEN,
        "(G17)": "no case looks at nominations of others",
        "loses pods on several nodes": _PART,  # nodes that cost the same
        "what is left of a gang": _MACHINE,
        "PodDisruptionBudgets": "both do the same",
        "nobody to evict": _MACHINE,
        "changed nothing": _MACHINE,
        "members of another kind": _MACHINE,
        "more members than the minimum": _NO_MINIMUM,
        "of an only-waiting gang": _NO_MINIMUM,
        "other PostFilter plugins": _MACHINE,
        "another member of the round": _MACHINE,
        "when the gang is tried again": _MACHINE,
        "in the background": _MACHINE,
        "that its quota refuses": _MACHINE,
    },
}
