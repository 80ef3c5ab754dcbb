"""Is the API server new enough for components, does it know our kinds, and may components do what they need to?"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from koordinator.api import crd
from koordinator.doctor.finding import Finding, FindingSeverity, some_of
from koordinator.doctor.installation import ComponentName
from koordinator.doctor.snapshot import ClusterSnapshot, RawDefinition

SHOWN_MAX = 4


def check_access(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Yield one finding per component, with all that it may not do."""
    answers = snapshot.access
    if not answers:
        return
    gap = next((each.gap for each in answers if each.gap), "")
    if gap:
        yield Finding.notice(
            "permissions",
            f"permissions not checked: {gap}",
            why="this user may not create SubjectAccessReviews",
            do=("ask a cluster administrator to run: koordinator doctor --check access",),
        )
    for component in ComponentName:
        lacking = [
            each for each in answers if each.component is component and not each.allowed and not each.gap
        ]
        if not lacking:
            continue
        account = lacking[0].account
        words = "; ".join(f"{each.need.words} ({each.need.why})" for each in lacking[:SHOWN_MAX])
        more = f" and {len(lacking) - SHOWN_MAX} more" if len(lacking) > SHOWN_MAX else ""
        yield Finding.error(
            f"ServiceAccount {account.removeprefix('system:serviceaccount:').replace(':', '/')}",
            f"may not {words}{more}",
            why=f"requests of {component} are answered with 403",
            do=(
                "koordinator install --apply    # installs the roles of this version",
                "koordinator install --apply --force-conflicts    # if it reports that a role was replaced",
                f"kubectl auth can-i {lacking[0].need.words} --as={account}",
            ),
            objects=[each.need.words for each in lacking],
        )


MINOR_MIN = 22  # policy/v1 evictions; CRDs, webhooks and their reviews in v1 are older
_VERSION = re.compile(r"v?(\d+)\.(\d+)")


def check_version(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Yield one finding for a server that is too old, or that tells nothing of its version."""
    text = snapshot.server_version
    if not text:
        if snapshot.is_live:
            yield Finding.notice("API server", "it does not report its version", do=("kubectl version",))
        return
    found = _VERSION.match(text)
    if found is None or (int(found[1]), int(found[2])) >= (1, MINOR_MIN):
        return
    yield Finding.error(
        "API server",
        f"version {text} is older than v1.{MINOR_MIN}",
        why="evictions are sent as policy/v1, which older servers do not know: batch pods cannot be evicted",
        do=(f"upgrade the control plane to v1.{MINOR_MIN} or newer",),
    )


_OPTIONAL = {
    "recommendations.analysis.koordinator.sh",
    "clusternetworktopologies.scheduling.koordinator.sh",
    "scheduleexplanations.scheduling.koordinator.sh",
    "podmigrationjobs.scheduling.koordinator.sh",
}
"""CRDs without which the others still do their work."""


def check_crds(snapshot: ClusterSnapshot) -> Iterator[Finding]:
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
                f"version {version['name']} is not served (served: {some_of(map(str, served)) or 'none'})",
                why="components use this version and get 404",
                do=(_install([name]),),
            )
        elif lacking := list(_lacking(_schema(version), _schema(served[version["name"]]), "")):
            yield Finding.warning(
                found,
                f"older than this version of Koordinator: fields {some_of(lacking)} are missing",
                why="the API server silently drops these fields from every object",
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
