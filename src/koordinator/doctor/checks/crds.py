"""Are our CustomResourceDefinitions there, accepted, and as new as we are?"""

from collections.abc import Iterator, Mapping
from typing import Any

from koordinator.api import crd
from koordinator.doctor.finding import Finding, FindingSeverity, some_of
from koordinator.doctor.snapshot import ClusterSnapshot, RawDefinition

_OPTIONAL = {
    "recommendations.analysis.koordinator.sh",
    "clusternetworktopologies.scheduling.koordinator.sh",
    "scheduleexplanations.scheduling.koordinator.sh",
    "podmigrationjobs.scheduling.koordinator.sh",
}
"""Those without which the others still do their work."""


def check(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """For each of our definitions: missing, not established, version not served, or members missing."""
    known = {each.metadata.name: each for each in snapshot.of(RawDefinition)}
    missing = []
    for wanted in crd.manifests():
        name = wanted["metadata"]["name"]
        if name in known:
            yield from _compare(wanted, known[name])
        else:
            missing.append(name)
    for severity, names in (
        (FindingSeverity.ERROR, [name for name in missing if name not in _OPTIONAL]),
        (FindingSeverity.WARNING, [name for name in missing if name in _OPTIONAL]),
    ):
        if names:
            yield Finding.of(
                severity,
                f"CustomResourceDefinition {names[0]}" if len(names) == 1 else f"{len(names)} CRDs",
                f"missing: {some_of(names)}",
                why="components that read or write these objects get 404 for every request",
                do=(_install(names),),
                objects=names if len(names) > 1 else (),
            )


def _install(names: list[str]) -> str:
    return f"koordinator crds {' '.join(names)} | kubectl apply --server-side -f -"


def _compare(wanted: Mapping[str, Any], found: RawDefinition) -> Iterator[Finding]:
    name = found.metadata.name
    conditions = {each.get("type"): each for each in found.status.get("conditions") or ()}
    established = conditions.get("Established", {})
    if established.get("status") != "True":
        accepted = conditions.get("NamesAccepted", {})
        reason = accepted.get("message") or established.get("message") or "no reason is given"
        yield Finding.error(
            found,
            f"not established: {reason}",
            why="the API server does not serve these objects",
            do=(f"kubectl describe crd {name}",),
        )
        return
    served = {each.get("name"): each for each in found.spec.get("versions") or () if each.get("served")}
    for version in wanted["spec"]["versions"]:
        if version["name"] not in served:
            yield Finding.error(
                found,
                f"version {version['name']} is not served (there are {some_of(map(str, served)) or 'none'})",
                why="components speak this version and get 404",
                do=(_install([name]),),
            )
        elif lacking := list(_lacking(_schema(version), _schema(served[version["name"]]), "")):
            yield Finding.warning(
                found,
                f"older than this version of Koordinator: it lacks {some_of(lacking)}",
                why="the API server drops these members from every object, without a word",
                do=(_install([name]),),
                objects=lacking,
            )


def _schema(version: Mapping[str, Any]) -> Mapping[str, Any]:
    found = (version.get("schema") or {}).get("openAPIV3Schema") or {}
    return found if isinstance(found, dict) else {}


def _lacking(ours: Mapping[str, Any], theirs: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield members that our schema has and theirs has not; not below objects that keep what they do not know."""
    if theirs.get("x-kubernetes-preserve-unknown-fields"):
        return
    have = theirs.get("properties") or {}
    free = isinstance(theirs.get("additionalProperties"), dict)
    for name, schema in (ours.get("properties") or {}).items():
        where = f"{path}.{name}" if path else name
        if name in have:
            yield from _lacking(schema, have[name], where)
        elif not free and path != "metadata":
            yield where
    for nested, suffix in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(ours.get(nested), dict) and isinstance(theirs.get(nested), dict):
            yield from _lacking(ours[nested], theirs[nested], f"{path}{suffix}")
