"""Clusters from files: what `kubectl get … -o json|yaml` and `kubectl cluster-info dump` print.

An object that comes more than once counts as it is in the last file.
"""

import itertools
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import IO, Any, TypeVar

import msgspec

from koordinator.api import normalization, user_files, yaml_text
from koordinator.api.core import Event, Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.errors import KoordinatorError
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.api.meta import Object
from koordinator.api.network_topology import OBJECT_NAME, ClusterNetworkTopology
from koordinator.api.node_metric import NodeMetric
from koordinator.clock import FixedClock, parse_rfc3339
from koordinator.cluster import errors
from koordinator.cluster.protocol import Cluster
from koordinator.scheduler.config.config import SchedulerConfig
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.plugin.handle import Actions
from koordinator.scheduler.plugin.topology_tree import TopologyTree, build
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_info import PodInfo

T = TypeVar("T", bound=Object)
Json = dict[str, Any]

_LOGS, _LOGS_END = "==== START logs for ", "==== END logs for "
_LIST = "List"
LISTS_MAX = 20
PAGE = 500
"""Objects of one answer of a running cluster, some MiB of pods."""
YAML_BYTES_MAX = 64 << 20
"""More would take minutes to read, and most of the machine's memory."""


class DumpError(KoordinatorError, ValueError):
    """A file is no dump of Kubernetes objects."""

    def __init__(self, file: str, where: str, reason: str) -> None:
        super().__init__(file, where, reason)
        self.file, self.where, self.reason = file, where, reason

    def __str__(self) -> str:
        return ": ".join(part for part in (self.file, self.where, self.reason) if part)


class Dump:
    """Objects by kind, each once, in the order of the files; kept as text, a tenth of the memory of objects."""

    def __init__(self) -> None:
        self._objects: dict[tuple[str, str], dict[str, tuple[str, bytes]]] = {}

    def add(self, file: str, body: Any, place: str = "$") -> None:
        """An object or a list of objects, which stands at `place` in the file. Raises: DumpError."""
        for where, obj in _flat(file, body, place):
            version, kind = str(obj.get("apiVersion", "v1")), str(obj["kind"])
            group = version.rpartition("/")[0]
            meta = obj.get("metadata")
            if not isinstance(meta, dict) or not meta.get("name"):
                raise DumpError(file, f"{where}.metadata.name", f"a {kind} without a name")
            key = f"{meta.get('namespace', '')}/{meta['name']}"
            kept = {**obj, "metadata": {name: meta[name] for name in meta if name != "managedFields"}}
            try:
                text = msgspec.json.encode(kept)
            except (ValueError, TypeError, RecursionError) as error:
                raise DumpError(file, where, f"{kind} {key.lstrip('/')}: no JSON object: {error}") from error
            self._objects.setdefault((group, kind), {})[key] = (f"{file}: {kind} {key.lstrip('/')}", text)

    def views(self, view: type[T]) -> list[T]:
        """Return all objects of a kind. Raises: DumpError when one does not fit the view."""
        return list(self.each(view))

    def each(self, view: type[T]) -> Iterator[T]:
        """Yield the objects of a kind one by one: a cluster's pods take ten times the memory of their text. Raises:
        DumpError as `views` does."""
        for where, text in self._objects.get((view.resource.group, view.resource.kind), {}).values():
            yield _decoded(view, where, msgspec.json.decode(text))

    def objects(self) -> Iterator[tuple[str, str, str, str, Json]]:
        """Yield group, kind, namespace, name and the object itself, of all."""
        for (group, kind), objects in self._objects.items():
            for key, (_, text) in objects.items():
                namespace, _, name = key.partition("/")
                yield group, kind, namespace, name, msgspec.json.decode(text)

    def counts(self) -> dict[str, int]:
        """Objects per kind."""
        return {kind: len(objects) for (_, kind), objects in sorted(self._objects.items())}


def read(paths: Iterable[str]) -> Dump:
    """Return all objects of the files, which may be gzipped; `-` is standard input. Raises: DumpError, FileError,
    OSError."""
    dump = Dump()
    for path in paths:
        name = "standard input" if path == "-" else path
        with user_files.opened(path) as file:
            for place, document in documents(name, file):
                dump.add(name, document, place)
    return dump


async def pages(cluster: Cluster, view: type[Object]) -> AsyncIterator[Json]:
    """Yield the lists of a kind of a running cluster, page by page; none of a kind that it does not serve. Raises:
    ApiError."""
    token: str | None = ""
    while token is not None:
        params = {"limit": str(PAGE), **({"continue": token} if token else {})}
        try:
            body = await cluster.request("GET", view.resource.path(), params=params)
        except errors.NotFound:
            return
        if body.get("items"):
            yield body
        token = (body.get("metadata") or {}).get("continue") or None


async def fetch(cluster: Cluster, views: Iterable[type[Object]]) -> Dump:
    """Return all objects of these kinds of a running cluster. Raises: ApiError."""
    dump = Dump()
    for view in views:
        async for body in pages(cluster, view):
            dump.add("the cluster", body)
    return dump


def documents(name: str, file: IO[bytes]) -> Iterator[tuple[str, Any]]:
    """Yield the JSON documents one after the other (of a list, its objects), or the YAML documents, of a file; each
    with the place where it stands. Raises: DumpError, FileError."""
    stream = user_files.JsonStream(name, file)
    if stream.peek() not in ("{", "[", "="):
        yield from (("$", each) for each in _yaml_documents(name, stream))
        return
    while first := stream.peek():
        if first == "=":
            _skip_logs(stream)  # `cluster-info dump` prints them between documents
        elif first == "{":
            yield from _members(stream)
        else:
            yield "$", stream.value()


def _skip_logs(stream: user_files.JsonStream) -> None:
    if not stream.skip_line().startswith(_LOGS):
        raise stream.error("expected JSON, or logs as `kubectl cluster-info dump` prints them")
    while stream.peek():
        if stream.skip_line().startswith(_LOGS_END):
            return


def _members(stream: user_files.JsonStream) -> Iterator[tuple[str, Any]]:
    """Yield a JSON object, or where it is a list the objects in it, one by one."""
    body: Json = {}
    waiting: list[Any] = []  # items without a kind of their own, of a list that says its kind behind them
    is_list = False
    stream.take("{")
    for count in itertools.count():
        if stream.peek() == "}":
            break
        if count:
            stream.take(",")
        key = str(stream.value())
        stream.take(":")
        if key != "items" or stream.peek() != "[":
            body[key] = stream.value()
            continue
        is_list = True
        for number, item in enumerate(_items(stream)):
            kind = str(body.get("kind", ""))
            if isinstance(item, dict) and "kind" in item:
                yield f"$.items[{number}]", item
            elif isinstance(item, dict) and kind.endswith(_LIST) and kind != _LIST:
                version = body.get("apiVersion", "v1")
                yield f"$.items[{number}]", {"apiVersion": version, "kind": kind.removesuffix(_LIST), **item}
            else:
                waiting.append(item)
    stream.take("}")
    if waiting or not is_list:
        yield "$", {**body, "items": waiting} if is_list else body


def _items(stream: user_files.JsonStream) -> Iterator[Any]:
    """Yield the values of a JSON list."""
    stream.take("[")
    for count in itertools.count():
        if stream.peek() == "]":
            break
        if count:
            stream.take(",")
        yield stream.value()
    stream.take("]")


def _yaml_documents(name: str, stream: user_files.JsonStream) -> Iterator[Any]:
    text = stream.rest(
        YAML_BYTES_MAX, f"is larger than {YAML_BYTES_MAX >> 20} MiB: write it as JSON (-o json)"
    )
    try:
        yield from (each for each in yaml_text.load_all(text) if each is not None)
    except yaml_text.YamlError as error:
        raise DumpError(name, "", f"no YAML: {error}") from error


def _flat(file: str, body: Any, where: str) -> Iterator[tuple[str, Json]]:
    """Objects in a body with the place where they stand; items of typed lists need no kind of their own."""
    if where.count("[") > LISTS_MAX:
        raise DumpError(file, "", f"lists nested more than {LISTS_MAX} deep")
    if isinstance(body, list):
        for number, item in enumerate(body):
            yield from _flat(file, item, f"{where}[{number}]")
        return
    if not isinstance(body, dict) or not isinstance(body.get("kind"), str):
        raise DumpError(file, where, "expected a Kubernetes object with apiVersion and kind")
    kind = body["kind"]
    if not (kind.endswith(_LIST) and "items" in body):
        yield where, body
        return
    inherited = {}
    if kind != _LIST:
        inherited = {"apiVersion": body.get("apiVersion", "v1"), "kind": kind.removesuffix(_LIST)}
    for number, item in enumerate(body["items"] or ()):
        if not isinstance(item, dict):
            raise DumpError(file, f"{where}.items[{number}]", "expected an object")
        yield from _flat(file, {**inherited, **item}, f"{where}.items[{number}]")


def _decoded(view: type[T], where: str, obj: Json) -> T:
    try:
        return from_builtins(obj, view)
    except msgspec.ValidationError as error:
        raise DumpError(where, "", str(error)) from error


class DumpActions(Actions):
    """Actions of an engine that is filled from files: a reserve pod that has a node counts there."""

    table: NodeTable

    def enter_pod(self, old: Pod | None, pod: Pod) -> None:
        if pod.spec.node_name:
            self.table.assign(PodInfo.of(pod, self.table.registry), pod.spec.node_name)


class DumpSnapshot(msgspec.Struct, frozen=True):
    """An engine as it was when the dump was made. `now_s` is the newest moment that the dump mentions:
    reports of usage are as fresh as they were then."""

    engine: Engine
    pods: dict[str, Pod]
    events: list[Event]
    now_s: float


def snapshot(dump: Dump, config: SchedulerConfig, *, seed: int = 0) -> DumpSnapshot:
    """Return an engine that has seen everything in the dump. Raises: DumpError when there are no nodes or an object
    cannot be read; ConfigError."""
    nodes = [normalization.normalize_node(node) for node in dump.views(Node)]
    if not nodes:
        kinds = ", ".join(f"{count} {kind}" for kind, count in dump.counts().items()) or "nothing"
        hint = "make it with `kubectl get nodes,pods --all-namespaces -o json`"
        raise DumpError("the dump", "", f"there are no Nodes in it (found: {kinds}); {hint}")
    steps = normalization.PodSteps.of(FeatureGates.of(Component.SCHEDULER))
    pods = [normalization.normalize_pod(pod, steps) for pod in dump.views(Pod)]
    now_s = newest_s(dump, nodes, pods)
    tree = _guarded(network, dump, nodes)
    actions = DumpActions()
    engine = Engine(
        config,
        FixedClock(now_s),
        seed=seed,
        network=lambda: tree,
        plugins=installed_plugins(),
        actions=actions,
    )
    actions.table = engine.table
    for node in nodes:
        _guarded(engine.table.set_node, node)
    # Plugins see pods and nodes with current names of resources, as they do in a running scheduler.
    seen: dict[type[Object], Sequence[Object]] = {Node: nodes, Pod: pods}
    for handle in engine.handles:
        for watch in handle.watches:
            if watch.view not in seen:
                seen[watch.view] = dump.views(watch.view)
            for obj in seen[watch.view]:
                watch.on_add(obj)
    for pod in pods:
        _enter(engine, pod)
    return DumpSnapshot(engine, {pod.key: pod for pod in pods}, dump.views(Event), now_s)


def views_of(config: SchedulerConfig) -> list[type[Object]]:
    """Return the kinds that `snapshot` looks at. Raises: ConfigError."""
    engine = Engine(config, FixedClock(0.0), plugins=installed_plugins(), actions=DumpActions())
    watched = (watch.view for handle in engine.handles for watch in handle.watches)
    return list(dict.fromkeys((Node, Pod, ClusterNetworkTopology, *watched)))


def network(dump: Dump, nodes: Iterable[Node]) -> TopologyTree | None:
    """Return the network as the objects describe it, None when they do not. Raises: TopologySpecError, DumpError."""
    for each in dump.views(ClusterNetworkTopology):
        if each.metadata.name == OBJECT_NAME:
            named = ((node.metadata.name, node.metadata.labels) for node in nodes)
            return build(each.spec.network_topology_spec, named)
    return None


def _enter(engine: Engine, pod: Pod) -> None:
    info = _guarded(PodInfo.of, pod, engine.table.registry)
    if info.is_terminal:
        return
    if info.node_name:
        engine.table.assign(info, info.node_name)
    elif pod.status.nominated_node_name:
        engine.nominations.set(info, pod.status.nominated_node_name)


def _guarded(call: Any, *args: Any) -> Any:
    try:
        return call(*args)
    except KoordinatorError as error:
        raise DumpError("the dump", "", str(error)) from error


def newest_s(dump: Dump, nodes: Iterable[Node], pods: Iterable[Pod]) -> float:
    """Return the newest time in reports, heartbeats and creations; 0 when there is none."""
    texts = [str(metric.status.update_time or "") for metric in dump.views(NodeMetric)]
    for node in nodes:
        texts += [each.last_heartbeat_time or "" for each in node.status.conditions]
        texts.append(node.metadata.creation_timestamp or "")
    for pod in pods:
        texts += [each.last_transition_time or "" for each in pod.status.conditions]
        texts.append(pod.metadata.creation_timestamp or "")
    return max((_seconds(text) for text in texts), default=0.0)


def _seconds(text: str) -> float:
    try:
        return parse_rfc3339(text) if text else 0.0
    except ValueError:
        return 0.0  # whoever reads the field says what is wrong with it; here it is only one time of many
