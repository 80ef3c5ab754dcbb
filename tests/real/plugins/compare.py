"""Where our answers to a case differ from those of kube-scheduler's plugins, apart from what differs on purpose.

Each rule that sets something aside says so in the words of `docs/deliberate-differences.md`.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.real.plugins import ours
from tests.real.plugins.program import Theirs

Json = dict[str, Any]

NODE_AFFINITY, INTER_POD, FIT = "NodeAffinity", "InterPodAffinity", "NodeResourcesFit"
SPREAD, PORTS = "PodTopologySpread", "NodePorts"
RESTRICTIONS, LIMITS = "VolumeRestrictions", "NodeVolumeLimits"
ZONE = "topology.kubernetes.io/zone"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def differences(theirs: Theirs, case: Json) -> list[str]:
    """One line each; paths name the node or the plugin."""
    return list(Comparison(case, theirs.answer(case), ours.answer(case)).differences())


class Comparison:
    def __init__(self, case: Json, theirs: Json, ours: Json) -> None:
        self._case, self._theirs, self._ours = case, theirs, ours
        self._nominated = {each["status"]["nominatedNodeName"] for each in case["nominated"]}

    def differences(self) -> Iterator[str]:
        theirs, our = self._theirs, self._ours
        if self._fails_on_purpose():
            return
        if theirs["error"] or our["error"]:
            if not (theirs["error"] and our["error"]):
                yield f"error: theirs {theirs['error']!r}, ours {our['error']!r}"
            return
        yield from self._verdicts("preFilter", theirs["preFilter"], our["preFilter"])
        if theirs["preFilter"] is None and our["preFilter"] is None:
            for node in sorted(theirs["nodes"].keys() | our["nodes"].keys()):
                if not self._differs_on_purpose(node):
                    yield from self._verdicts(node, theirs["nodes"].get(node), our["nodes"].get(node))
        if not any(map(self._differs_on_purpose, theirs["nodes"])):
            yield from self._scores()
        if theirs["ineligible"] != our["ineligible"]:
            yield f"ineligible: theirs {theirs['ineligible']!r}, ours {our['ineligible']!r}"
        yield from self._victims()

    def _verdicts(self, path: str, theirs: Json | None, ours: Json | None) -> Iterator[str]:
        if theirs is None or ours is None:
            if theirs != ours:
                yield f"{path}: theirs {theirs}, ours {ours}"
            return
        for field in ("code", "reasons", "plugin"):
            if _comparable(theirs[field]) != _comparable(ours[field]):
                yield f"{path}: {field}: theirs {theirs[field]}, ours {ours[field]}"

    def _scores(self) -> Iterator[str]:
        """A plugin that takes no part scores 0 everywhere."""
        theirs, our = self._theirs["scores"], self._ours["scores"]
        for plugin in sorted(theirs.keys() | our.keys()):
            if self._scores_on_purpose(plugin):
                continue
            one, other = theirs.get(plugin, {}), our.get(plugin, {})
            for node in sorted(one.keys() | other.keys()):
                for field in ("raw", "normalised"):
                    left, right = (each.get(node, {}).get(field, 0) for each in (one, other))
                    if right is not None and left != right:
                        yield f"{plugin} on {node}: {field}: theirs {left}, ours {right}"

    def _victims(self) -> Iterator[str]:
        theirs, our = self._theirs["victims"], self._ours["victims"]
        are_all_compared = True
        for node in sorted(theirs.keys() | our.keys()):
            one, other = theirs.get(node), our.get(node)
            if self._differs_on_purpose(node) or self._evicts_on_purpose(node, one, other):
                are_all_compared = False
                continue
            if one is None or other is None:
                yield f"victims on {node}: theirs {one}, ours {other}"
                continue
            yield from self._verdicts(f"preemption on {node}", one["verdict"], other["verdict"])
            for field in ("pods", "violations"):
                if one[field] != other[field]:
                    yield f"victims on {node}: {field}: theirs {one[field]}, ours {other[field]}"
        chosen, best = self._theirs["chosen"], self._ours["chosen"]
        # Among equally good nodes, either may take any.
        if are_all_compared and (chosen not in best if chosen else best):
            yield f"chosen for preemption: theirs {chosen!r}, ours one of {best}"

    # On purpose

    def _fails_on_purpose(self) -> bool:
        """Preferences for nodes that cannot be read count for nothing; kube-scheduler fails the attempt."""
        return f'running PreScore plugin "{NODE_AFFINITY}"' in self._theirs["error"]

    def _differs_on_purpose(self, node: str) -> bool:
        theirs, our = self._theirs["nodes"].get(node), self._ours["nodes"].get(node)
        if theirs is None or our is None:
            return False
        if self._is_verdict_on_purpose(node, theirs, our):
            return True
        plugins = (theirs["plugin"], our["plugin"])
        if SPREAD in plugins and self._nominated and self._spreads_over_everybody():
            return True
        return INTER_POD in plugins and self._selects_unlabelled_namespaces()

    def _is_verdict_on_purpose(self, node: str, theirs: Json, ours: Json) -> bool:
        # Nominated pods count also where kube-scheduler has left the plugin out for lack of such pods on nodes.
        if node in self._nominated and ours["plugin"] in self._theirs["leftOut"]:
            return True
        # A volume that is attached to the node already needs no place there, whether a pod uses it or not.
        if theirs["plugin"] == LIMITS and node in self._attached_nodes():
            return True
        # A claim that belongs to another pod keeps only its own pod from being placed.
        return theirs["code"] == "Error" and "(pod is not owner)" in theirs["reasons"][0]

    def _evicts_on_purpose(self, node: str, theirs: Json | None, ours: Json | None) -> bool:
        if self._spreads_over_everybody() or self._spreads_over_leaving(node):
            return True
        if theirs is not None and ours is not None:
            plugin = ours["verdict"]["plugin"] or self._ours["nodes"].get(node, {}).get("plugin")
            if plugin == RESTRICTIONS and self._claim_has_several_users():
                return True
            if plugin == PORTS and self._port_has_several_users(node):
                return True
            return self._is_verdict_on_purpose(node, theirs["verdict"], ours["verdict"])
        # Nodes with nominated pods are told by what keeps the pod away without them: nothing may help against that.
        found = theirs or ours
        return node in self._nominated and found is not None and not found["pods"]

    def _scores_on_purpose(self, plugin: str) -> bool:
        if plugin == FIT:
            # Requests of the pod as a whole count when it is placed, as they do once it is there.
            return bool(self._case["pod"]["spec"].get("resources", {}).get("requests"))
        if plugin == SPREAD:
            return self._has_empty_zones()
        return plugin == INTER_POD and self._selects_unlabelled_namespaces()

    def _has_empty_zones(self) -> bool:
        """With the system's own constraints, nodes without a zone are no part of the zone without a name."""
        is_own = bool(self._case["pod"]["spec"].get("topologySpreadConstraints"))
        zones = {each["metadata"].get("labels", {}).get(ZONE) for each in self._case["nodes"]}
        return not is_own and {None, ""} <= zones

    def _spreads_over_everybody(self) -> bool:
        """`labelSelector: {}` counts nobody; kube-scheduler counts pods that come and go in a trial all the same."""
        wanted = self._case["pod"]["spec"].get("topologySpreadConstraints", ())
        return any(each.get("labelSelector") == {} for each in wanted)

    def _spreads_over_leaving(self, node: str) -> bool:
        """A pod that terminates is not counted, so evicting it gains nothing; kube-scheduler's trials subtract it
        all the same."""
        is_hard = any(
            each["whenUnsatisfiable"] == "DoNotSchedule"
            for each in self._case["pod"]["spec"].get("topologySpreadConstraints", ())
        )
        return is_hard and any(
            each["spec"]["nodeName"] == node and "deletionTimestamp" in each["metadata"]
            for each in self._case["pods"]
        )

    def _claim_has_several_users(self) -> bool:
        """A claim for one pod is taken until the last of its users is gone; in kube-scheduler's trials until any user
        of a claim of this name is, in whatever namespace."""
        users = Counter(name for each in self._case["pods"] for name in _claims(each))
        return any(users[name] > 1 for name in _claims(self._case["pod"]))

    def _attached_nodes(self) -> set[str]:
        attachments = (each for each in self._case["objects"] if each["kind"] == "VolumeAttachment")
        return {each["spec"]["nodeName"] for each in attachments}

    def _port_has_several_users(self, node: str) -> bool:
        """A port that two pods have is taken until both are gone; in kube-scheduler's trials until one is."""
        users = Counter(
            port["hostPort"]
            for each in self._case["pods"]
            for container in (*each["spec"]["containers"], *each["spec"].get("initContainers", ()))
            for port in container.get("ports", ())
            if each["spec"]["nodeName"] == node and "hostPort" in port
        )
        return max(users.values(), default=0) > 1

    def _selects_unlabelled_namespaces(self) -> bool:
        """A `namespaceSelector` means the namespaces that it selects; in kube-scheduler all, if it selects one without
        labels."""
        affinity = self._case["pod"]["spec"].get("affinity", {})
        for part in (affinity.get("podAffinity", {}), affinity.get("podAntiAffinity", {})):
            weighted = (each["podAffinityTerm"] for each in part.get(PREFERRED, ()))
            for term in (*part.get(REQUIRED, ()), *weighted):
                selector = term.get("namespaceSelector", {})
                wanted = selector.get("matchExpressions", ())
                is_met = all(each["operator"] in ("NotIn", "DoesNotExist") for each in wanted)
                if wanted and is_met and not selector.get("matchLabels"):
                    return True
        return False


def _comparable(part: Any) -> Any:
    """Missing claims and classes are named in the plural; reasons have no order, since NodeResourcesFit of
    kube-scheduler names extended resources in that of a map."""
    if isinstance(part, str):
        return part
    return sorted(_PLURAL.sub(r"\1 ", text) for text in part)


_PLURAL = re.compile(r"(persistentvolumeclaim|storageclass)(?:e?s)?(?:\.storage\.k8s\.io)? ")


def _claims(pod: Json) -> Iterator[str]:
    for volume in pod["spec"].get("volumes", ()):
        if "persistentVolumeClaim" in volume:
            yield volume["persistentVolumeClaim"]["claimName"]
