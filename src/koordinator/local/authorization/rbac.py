"""Decide who may do what, by the Roles, ClusterRoles and bindings in a store.

Bindings are kept by subject and brought up to date from the logs of their tables, so a question costs the rules of
the one who asks, whatever else is stored.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import msgspec

from koordinator.cluster.backend import ObjectRecord
from koordinator.local.authorization import rules
from koordinator.local.authorization.rules import AccessRequest, PolicyRule
from koordinator.local.store import ObjectStore, Table

GROUP = "rbac.authorization.k8s.io"
MASTERS = "system:masters"
"""The group that may do everything, whatever is bound."""

Subject = tuple[str, str]
"""`User` or `Group`, and its name."""


class RBACDecision(msgspec.Struct, frozen=True):
    """The decision whether somebody may, and why; for a refusal the reason names what could not be resolved, if
    anything."""

    allowed: bool
    reason: str = ""


class Authorizer(Protocol):
    """Says who may do what."""

    def decide(self, user: str, groups: Sequence[str], request: AccessRequest) -> RBACDecision:
        """Return whether a user who is in these groups may do this."""
        ...

    def rules_of(
        self, user: str, groups: Sequence[str], namespace: str
    ) -> tuple[Sequence[PolicyRule], Sequence[str]]:
        """Return all that a user may do in a namespace ("" for the cluster's scope), and what could not be resolved."""
        ...


EVERYTHING = (
    rules.read({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}),
    rules.read({"verbs": ["*"], "nonResourceURLs": ["*"]}),
)


class MastersOnly:
    """Allows administrators everything and others nothing, where no roles are kept."""

    def decide(self, user: str, groups: Sequence[str], request: AccessRequest) -> RBACDecision:
        """See `Authorizer`."""
        return RBACDecision(MASTERS in groups)

    def rules_of(
        self, user: str, groups: Sequence[str], namespace: str
    ) -> tuple[Sequence[PolicyRule], Sequence[str]]:
        """See `Authorizer`."""
        return (EVERYTHING if MASTERS in groups else ()), ()


class _Binding(msgspec.Struct, frozen=True):
    """A binding, compiled: `subjects` are those that it applies to, each with its description for reasons."""

    namespace: str
    name: str
    kind: str
    role_kind: str
    role: str
    subjects: dict[Subject, str]


class Rbac:
    """The roles and bindings of a store. `Authorizer` says what its methods mean."""

    def __init__(self, store: ObjectStore) -> None:
        self._bindings = (
            _Bindings(store.table(f"clusterrolebindings.{GROUP}"), "ClusterRoleBinding"),
            _Bindings(store.table(f"rolebindings.{GROUP}"), "RoleBinding"),
        )
        self._roles = {
            "Role": _Roles(store.table(f"roles.{GROUP}")),
            "ClusterRole": _Roles(store.table(f"clusterroles.{GROUP}")),
        }

    def decide(self, user: str, groups: Sequence[str], request: AccessRequest) -> RBACDecision:
        """See `Authorizer`."""
        if MASTERS in groups:
            return RBACDecision(True)
        problems: list[str] = []
        subjects = _subjects_of(user, groups)
        for binding, subject, found in self._visit(subjects, request.namespace, problems):
            if any(rule.allows(request) for rule in found):
                where = f"{binding.name}/{binding.namespace}" if binding.namespace else binding.name
                by = f"{binding.kind} {_quoted(where)} of {binding.role_kind} {_quoted(binding.role)}"
                return RBACDecision(True, f"RBAC: allowed by {by} to {binding.subjects[subject]}")
        return RBACDecision(False, f"RBAC: {_joined(problems)}" if problems else "")

    def rules_of(
        self, user: str, groups: Sequence[str], namespace: str
    ) -> tuple[Sequence[PolicyRule], Sequence[str]]:
        """See `Authorizer`."""
        problems: list[str] = []
        held = [*EVERYTHING] if MASTERS in groups else []
        for _, _, found in self._visit(_subjects_of(user, groups), namespace, problems):
            held += found
        return held, problems

    def rules_of_role(self, kind: str, name: str, namespace: str) -> Sequence[PolicyRule] | None:
        """Return the rules that a reference stands for; None when there is no such role."""
        roles = self._roles.get(kind)
        return None if roles is None else roles.get(namespace if kind == "Role" else "", name)

    def _visit(
        self, subjects: Sequence[Subject], namespace: str, problems: list[str]
    ) -> Iterator[tuple[_Binding, Subject, Sequence[PolicyRule]]]:
        """Yield all bindings of the subjects with the rules behind them, one per binding."""
        for bindings, space in zip(self._bindings, ("", namespace), strict=True):
            if bindings is self._bindings[1] and not namespace:
                return
            for binding, subject in bindings.of(space, subjects):
                found = self.rules_of_role(binding.role_kind, binding.role, namespace)
                if found is None:
                    kind = f"{binding.role_kind.lower()}.{GROUP}"
                    problems.append(f"{kind} {_quoted(binding.role)} not found")
                else:
                    yield binding, subject, found


def _subjects_of(user: str, groups: Sequence[str]) -> list[Subject]:
    return [("User", user), *(("Group", group) for group in groups)]


def _joined(problems: Sequence[str]) -> str:
    """Several errors as Go prints an aggregate."""
    different = list(dict.fromkeys(problems))
    return different[0] if len(different) == 1 else f"[{', '.join(different)}]"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


class _Roles:
    """The rules of roles, read anew when a role changed."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._read: dict[tuple[str, str], tuple[ObjectRecord, tuple[PolicyRule, ...]]] = {}

    def get(self, namespace: str, name: str) -> Sequence[PolicyRule] | None:
        record = self._table.get(namespace, name)
        key = (namespace, name)
        if record is None:
            self._read.pop(key, None)
            return None
        known = self._read.get(key)
        if known is None or known[0] is not record:
            known = self._read[key] = (
                record,
                tuple(rules.read(rule) for rule in record.obj.get("rules") or ()),
            )
        return known[1]


class _Bindings:
    """The bindings of a table by namespace and subject."""

    def __init__(self, table: Table, kind: str) -> None:
        self._table = table
        self._kind = kind
        self._position = -1
        self._known: dict[tuple[str, str], _Binding] = {}
        self._by_subject: dict[tuple[str, Subject], dict[str, _Binding]] = {}

    def of(self, namespace: str, subjects: Iterable[Subject]) -> Iterator[tuple[_Binding, Subject]]:
        """Yield each binding that applies to one of the subjects, once."""
        self._follow()
        seen: set[str] = set()
        for subject in subjects:
            for name, binding in self._by_subject.get((namespace, subject), {}).items():
                if name not in seen:
                    seen.add(name)
                    yield binding, subject

    def _follow(self) -> None:
        """Take in what changed since the last question."""
        table = self._table
        if table.position == self._position:
            return
        changes = table.changes_since(self._position) if self._position >= 0 else None
        if changes is None:
            self._known.clear()
            self._by_subject.clear()
            for record in table.records():
                meta = record.obj["metadata"]
                self._put(meta.get("namespace", ""), meta["name"], record)
        else:
            for change in changes:
                self._put(change.namespace, change.name, change.new)
        self._position = table.position

    def _put(self, namespace: str, name: str, record: ObjectRecord | None) -> None:
        old = self._known.pop((namespace, name), None)
        if old is not None:
            for subject in old.subjects:
                group = self._by_subject[namespace, subject]
                del group[name]
                if not group:
                    del self._by_subject[namespace, subject]
        if record is None:
            return
        new = self._known[namespace, name] = _binding(record.obj, namespace, self._kind)
        for subject in new.subjects:
            self._by_subject.setdefault((namespace, subject), {})[name] = new


def _binding(obj: dict[str, Any], namespace: str, kind: str) -> _Binding:
    subjects: dict[Subject, str] = {}
    for raw in obj.get("subjects") or ():
        subject = _subject(raw, namespace)
        if subject is not None:
            subjects.setdefault(*subject)
    ref = obj.get("roleRef") or {}
    return _Binding(
        namespace, obj["metadata"]["name"], kind, ref.get("kind", ""), ref.get("name", ""), subjects
    )


def _subject(raw: dict[str, Any], namespace: str) -> tuple[Subject, str] | None:
    """Return the user or group that an entry of `subjects` means, and its description; a ServiceAccount is meant by its
    user name."""
    kind, name = raw.get("kind", ""), raw.get("name", "")
    if kind in ("User", "Group"):
        return (kind, name), f"{kind} {_quoted(name)}"
    space = raw.get("namespace") or namespace
    if kind == "ServiceAccount" and space:
        return ("User", f"system:serviceaccount:{space}:{name}"), f"{kind} {_quoted(f'{name}/{space}')}"
    return None
