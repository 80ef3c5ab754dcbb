"""The rules of a role, held against what a component really asks of the API."""

import ast
import functools
import importlib
import inspect
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from koordinator.api.meta import Object
from koordinator.cluster import errors, resource_path
from koordinator.cluster.memory import MemoryCluster
from koordinator.cluster.protocol import Page, WatchEvent
from koordinator.install import rbac
from koordinator.install.rbac import PermissionRule

T = TypeVar("T", bound=Object)
SOURCE = Path(__file__).parents[2] / "src" / "koordinator"
NAMESPACE = "koordinator-system"
_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Roles:
    """May a component do that? Notes the rules that were needed, and what none of them allows."""

    def __init__(self, component: str) -> None:
        self.rules = rbac.rules()[component]
        self.used: set[tuple[PermissionRule, str, str]] = set()
        self.refused: list[str] = []

    def check(self, verb: str, group: str, resource: str, namespace: str = "", name: str = "") -> None:
        """Raises: Forbidden, as an API server does."""
        for rule in self.rules:
            if (
                group == rule.group
                and resource in rule.resources
                and verb in rule.verbs
                and (not rule.names or name in rule.names)
                and (not rule.in_namespace or namespace == NAMESPACE)
            ):
                self.used.add((rule, resource, verb))
                return
        what = f"{verb} {resource}.{group} {namespace}/{name}"
        self.refused.append(what)
        raise errors.Forbidden(f"no rule allows to {what}")

    def unused(self) -> list[str]:
        """`verb resource.group` of what nobody needed."""
        return [
            f"{verb} {resource}.{rule.group}"
            for rule in self.rules
            for resource in rule.resources
            for verb in rule.verbs
            if (rule, resource, verb) not in self.used
        ]


class RoleCluster(MemoryCluster):
    """A cluster that allows a component what its roles allow."""

    def __init__(self, backend: Any, roles: Roles) -> None:
        super().__init__(backend, user="component")
        self.roles = roles

    def _check(self, verb: str, view: type[Object], namespace: str, name: str = "", sub: str = "") -> None:
        resource = view.resource
        plural = f"{resource.plural}/{sub}" if sub else resource.plural
        self.roles.check(verb, resource.group, plural, namespace, name)

    async def get(self, view: type[T], name: str, namespace: str = "") -> T:
        self._check("get", view, namespace, name)
        return await super().get(view, name, namespace)

    async def list(self, view: type[T], namespace: str = "", **options: Any) -> Page[T]:
        self._check("list", view, namespace, _named(options.get("field_selector", "")))
        return await super().list(view, namespace, **options)

    def watch(
        self, view: type[T], namespace: str = "", **options: Any
    ) -> AsyncIterator[Sequence[WatchEvent[T]]]:
        self._check("watch", view, namespace, _named(options.get("field_selector", "")))
        return super().watch(view, namespace, **options)

    async def create(self, view: type[T], obj: Mapping[str, Any], namespace: str = "") -> T:
        self._check("create", view, namespace)  # an API server does not know the name yet
        return await super().create(view, obj, namespace)

    async def patch(self, view: type[T], name: str, patch: Any, namespace: str = "", **options: Any) -> T:
        self._check("patch", view, namespace, name, options.get("subresource", ""))
        return await super().patch(view, name, patch, namespace, **options)

    async def delete(self, view: type[T], name: str, namespace: str = "", **options: Any) -> None:
        self._check("delete", view, namespace, name)
        await super().delete(view, name, namespace, **options)

    async def bind(self, namespace: str, pod: str, node: str, *, uid: str = "") -> None:
        self.roles.check("create", "", "pods/binding", namespace, pod)
        await super().bind(namespace, pod, node, uid=uid)

    async def evict(
        self, namespace: str, pod: str, *, uid: str = "", grace_period_s: int | None = None
    ) -> None:
        self.roles.check("create", "", "pods/eviction", namespace, pod)
        await super().evict(namespace, pod, uid=uid, grace_period_s=grace_period_s)

    async def request(self, method: str, path: str, *rest: Any) -> dict[str, Any]:
        target = resource_path.parse(path)
        plural = f"{target.plural}/{target.subresource}" if target.subresource else target.plural
        if plural:  # everybody may ask what kinds there are
            verb = "list" if method == "GET" and not target.name else _VERBS[method]
            self.roles.check(verb, target.group, plural, target.namespace, target.name)
        return await super().request(method, path, *rest)


def _named(field_selector: str) -> str:
    """API servers take the name of a list or watch from its selector."""
    field, _, name = field_selector.partition("=")
    return name if field == "metadata.name" else ""


# --- What the code asks for, read without running it ---

_ON_VIEWS = ("get", "list", "watch", "create", "patch", "delete")


@functools.cache
def calls(package: str) -> list[tuple[str, str, type[Object], str]]:
    """(place, verb, view, subresource) of every call on a cluster that names its view."""
    found: list[tuple[str, str, type[Object], str]] = []
    for path in sorted((SOURCE / package).rglob("*.py")):
        module = ".".join(["koordinator", *path.relative_to(SOURCE).with_suffix("").parts])
        found += _calls_of(path, module.removesuffix(".__init__"))
    return found


def _calls_of(path: Path, module: str) -> Iterator[tuple[str, str, type[Object], str]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        place = f"{path.relative_to(SOURCE)}:{node.lineno}"
        for verb, sub in _verbs(node):
            for argument in node.args[:2]:
                view = _view(module, argument)
                if view is not None:
                    yield place, verb, view, sub


def pod_calls(package: str) -> set[str]:
    """Which of `bind` and `evict` a package calls on a cluster."""
    found: set[str] = set()
    for path in (SOURCE / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            function = node.func if isinstance(node, ast.Call) else None
            if not isinstance(function, ast.Attribute) or function.attr not in ("bind", "evict"):
                continue
            if ast.unparse(function.value).endswith("cluster"):
                found.add(function.attr)
    return found


def _verbs(call: ast.Call) -> Iterable[tuple[str, str]]:
    """What a call asks for: `cluster.patch(View, …)`, `factory.informer(View, …)`, `StoredObject(shared, View, …)`."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    subs = [
        keyword.value.value
        for keyword in call.keywords
        if keyword.arg == "subresource" and isinstance(keyword.value, ast.Constant)
    ]
    if name in ("informer", "Informer"):
        return [("list", ""), ("watch", "")]
    if name == "StoredObject":
        return [(verb, "") for verb in ("list", "watch", "create", "patch")]
    if isinstance(function, ast.Attribute) and name in _ON_VIEWS:
        owner = ast.unparse(function.value)
        if owner.endswith(("cluster", "api", "client")):
            return [(name, str(subs[0]) if subs else "")]
    return []


def _view(module: str, argument: ast.expr) -> type[Object] | None:
    if not isinstance(argument, ast.Name | ast.Attribute):
        return None
    found: Any = importlib.import_module(module)
    for name in ast.unparse(argument).split("."):
        found = getattr(found, name, None)
    return found if inspect.isclass(found) and issubclass(found, Object) else None
