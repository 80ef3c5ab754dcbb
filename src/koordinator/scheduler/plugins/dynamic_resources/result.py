"""An allocation as it is written into the claim: what kubelets and drivers read."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from koordinator.api.affinity import NodeSelector
from koordinator.api.dra import ResourceClaim
from koordinator.scheduler.plugins.dynamic_resources.allocator import AllocatorResult
from koordinator.scheduler.plugins.dynamic_resources.demand import ClaimDemand, SubRequestTerms
from koordinator.scheduler.plugins.dynamic_resources.inventory import DeviceKey, SliceDevice

Json = dict[str, Any]


class Grant(msgspec.Struct, frozen=True):
    """The grant to one claim: devices that nobody else may have then, and `status.allocation`."""

    claim: ResourceClaim
    devices: tuple[DeviceKey, ...]
    allocation: Json


def grants(demand: ClaimDemand, answer: AllocatorResult, entries: Sequence[SliceDevice]) -> list[Grant]:
    """Return one per claim; `entries` are the devices that the answer's indices mean."""
    found = []
    for index, claim in enumerate(demand.claims):
        results: list[Json] = []
        chosen: list[SubRequestTerms] = []
        taken: list[DeviceKey] = []
        used: list[SliceDevice] = []
        for ask, words, pick in zip(demand.problem.asks, demand.wanted, answer.picks, strict=True):
            if ask.claim != index:
                continue
            wanted, is_admin = words[pick.sub_request], ask.sub_requests[pick.sub_request].is_admin
            chosen.append(wanted)
            for device in pick.devices:
                entry = entries[device]
                used.append(entry)
                results.append(_result(wanted, entry, is_admin=is_admin))
                if not is_admin:
                    taken.append(entry.key)
        allocation: Json = {"devices": {"results": results}}
        if config := _config(claim, chosen):
            allocation["devices"]["config"] = config
        if selector := node_selector(used):
            allocation["nodeSelector"] = selector
        found.append(Grant(claim, tuple(taken), allocation))
    return found


def _result(wanted: SubRequestTerms, entry: SliceDevice, *, is_admin: bool) -> Json:
    driver, pool, device = entry.key
    result: Json = {"request": wanted.request, "driver": driver, "pool": pool, "device": device}
    if is_admin:
        result["adminAccess"] = True
    if wanted.tolerations:
        result["tolerations"] = [msgspec.to_builtins(each) for each in wanted.tolerations]
    return result


def _config(claim: ResourceClaim, chosen: Sequence[SubRequestTerms]) -> list[Json]:
    """Parameters of the classes first, then those of the claim for the wishes that were met: later ones win."""
    found: list[Json] = []
    for wanted in chosen:
        for own in wanted.device_class.spec.config:
            found.append(_parameters("FromClass", [wanted.request], own.opaque))
    met = {wanted.request for wanted in chosen}
    met |= {request.partition("/")[0] for request in met}
    for config in claim.spec.devices.config:
        if not config.requests or met.intersection(config.requests):
            found.append(_parameters("FromClaim", config.requests, config.opaque))
    return found


def _parameters(source: str, requests: Iterable[str], opaque: Json | None) -> Json:
    parameters: Json = {"source": source}
    if names := list(requests):
        parameters["requests"] = names
    if opaque is not None:
        parameters["opaque"] = opaque
    return parameters


def node_selector(entries: Sequence[SliceDevice]) -> Json | None:
    """Return nodes from which all of the devices can be used; None for all nodes."""
    fields: list[Json] = []
    labels: list[Json] = []
    for entry in entries:
        if entry.node_name:
            on_node = {"key": "metadata.name", "operator": "In", "values": [entry.node_name]}
            return {"nodeSelectorTerms": [{"matchFields": [on_node]}]}
        _add(entry.reach, fields, labels)
    term: Json = {}
    if labels:
        term["matchExpressions"] = labels
    if fields:
        term["matchFields"] = fields
    return {"nodeSelectorTerms": [term]} if term else None


def _add(reach: NodeSelector | None, fields: list[Json], labels: list[Json]) -> None:
    """The API allows slices a selector of exactly one term."""
    for term in reach.node_selector_terms[:1] if reach is not None else ():
        for requirements, known in ((term.match_expressions, labels), (term.match_fields, fields)):
            for requirement in requirements:
                body = msgspec.to_builtins(requirement)
                if body not in known:
                    known.append(body)
