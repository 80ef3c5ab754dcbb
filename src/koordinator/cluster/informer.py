"""A local, always current copy of one kind: list, watch, resume, relist.

Handlers run synchronously and in order; what they raise is logged and counted and stops nothing.
An object that does not fit the view keeps its last readable state here until it is deleted or mended.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, NoReturn, TypeVar, cast

from koordinator.api.meta import Object
from koordinator.cluster import errors
from koordinator.cluster.backoff import Backoff, BackoffPolicy, new_rng
from koordinator.cluster.protocol import Cluster, EventType, WatchEvent
from koordinator.cluster.supervise import Guard, supervise

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)

Key = tuple[str, str]
"""(namespace, name); the namespace of a cluster-scoped object is empty."""

# As client-go's reflector: 0.8 s doubling to 30 s, jitter 100 %.
RECONNECT = BackoffPolicy(initial_s=0.8, max_s=30.0, factor=2.0, jitter_ratio=1.0)
# A watch that ends sooner than this without an event is a failure; else a broken server makes us spin.
WATCH_S_MIN = 1.0
# Watches that fail in a row before we stop trusting the version and list again (a restored server).
FAILED_WATCHES_MAX = 3
# Watches in a row that said nothing before we list again: a proxy may hold back what it should pass on.
SILENT_WATCHES_MAX = 3
# Objects that a resync hands out before other tasks get their turn.
RESYNC_TURN = 64


class Informer(Generic[T]):
    """The cache of one view, kept by `run`. `rng` seeds the jitter of reconnects.

    `transform` is applied to each object before it is cached (to drop what nobody reads) and must keep
    `metadata.namespace`, `name`, `uid` and `resource_version`.
    """

    def __init__(
        self,
        cluster: Cluster,
        view: type[T],
        namespace: str = "",
        *,
        rng: random.Random,
        label_selector: str = "",
        field_selector: str = "",
        transform: Callable[[T], T] | None = None,
    ) -> None:
        self.view = view
        self.synced = asyncio.Event()
        self.guard = Guard(f"informer {view.resource.qualified}")
        self.list_count = 0
        self.event_count = 0
        self.failing_since_s: float | None = None
        """Since when (event loop's clock) the API server neither lists nor tells of changes; None: it does."""
        self._cluster = cluster
        self._namespace = namespace
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._transform = transform
        self._backoff = Backoff(RECONNECT, rng)
        self._version: str | None = None
        self._failed_watches = 0
        self._silent_watches = 0
        self._cache: dict[Key, T] = {}
        self._indexes: dict[str, _Index[T]] = {}
        self._on_add: list[Callable[[T], Any]] = []
        self._on_update: list[Callable[[T, T], Any]] = []
        self._on_delete: list[Callable[[T], Any]] = []

    # Reading

    @property
    def objects(self) -> Mapping[Key, T]:
        """Return all cached objects by (namespace, name), in order of arrival; a live, read-only view."""
        return MappingProxyType(self._cache)

    def get(self, name: str, namespace: str = "") -> T | None:
        return self._cache.get((namespace, name))

    def list(self, namespace: str = "") -> Sequence[T]:
        """Return all objects, or those of one namespace (a scan: index what is asked often)."""
        if not namespace:
            return list(self._cache.values())
        return [obj for (found, _), obj in self._cache.items() if found == namespace]

    def by_index(self, index: str, value: str) -> Sequence[T]:
        """Objects for which the index function gave `value`, in order of arrival."""
        cache = self._cache
        return [cache[key] for key in self._indexes[index].keys_of(value)]

    def __len__(self) -> int:
        return len(self._cache)

    # Wiring

    def add_index(self, name: str, values: Callable[[T], Iterable[str]]) -> None:
        """Keep objects findable by the texts that the pure function `values` gives for each.

        Asking again for the same name and function changes nothing. Raises: ValueError when the name has another
        function.
        """
        known = self._indexes.get(name)
        if known is not None:
            if known.values != values:
                raise ValueError(f"{self.guard.name}: index {name!r} exists with another function")
            return
        index = _Index(values, self.guard)
        for key, obj in self._cache.items():
            index.replace(key, None, obj)
        self._indexes[name] = index

    def add_handler(
        self,
        on_add: Callable[[T], Any] | None = None,
        on_update: Callable[[T, T], Any] | None = None,
        on_delete: Callable[[T], Any] | None = None,
    ) -> None:
        """Call these for every later change, and `on_add` at once for everything already cached."""
        if on_update is not None:
            self._on_update.append(on_update)
        if on_delete is not None:
            self._on_delete.append(on_delete)
        if on_add is not None:
            self._on_add.append(on_add)
            for obj in list(self._cache.values()):
                self.guard.call(on_add, obj)

    async def resync(self) -> None:
        """Hand every object to the handlers of updates again, as if it had changed to what it is."""
        for number, key in enumerate(list(self._cache), 1):
            obj = self._cache.get(key)
            if obj is not None:
                for on_update in self._on_update:
                    self.guard.call(on_update, obj, obj)
            if number % RESYNC_TURN == 0:
                await asyncio.sleep(0)

    # Running

    async def run(self) -> NoReturn:
        """Keep the cache current until cancelled."""
        await supervise(self._watched_step, self._backoff, self.guard)

    async def _watched_step(self) -> float:
        """Do one step, and note since when they fail."""
        begun_s = asyncio.get_running_loop().time()
        try:
            return await self._step()
        except errors.ApiError:
            if self.failing_since_s is None:
                self.failing_since_s = begun_s
            raise

    async def _step(self) -> float:
        """List when the version is unknown, else follow one watch to its end; seconds to pause."""
        if self._version is None:
            await self._relist()
        try:
            return await self._follow()
        except errors.Gone:
            log.info("informer lists again: resourceVersion expired", extra={"loop": self.guard.name})
            self._version = None
            self._failed_watches += 1
            if self._failed_watches > 1:
                raise  # it expires as fast as we list: slow down
            return 0.0
        except errors.ApiError:
            self._failed_watches += 1
            if self._failed_watches % FAILED_WATCHES_MAX == 0:
                self._version = None
            raise

    async def _relist(self) -> None:
        transform = self._transform
        failed: dict[Key, Exception] = {}
        is_first = not self._cache
        """Nothing has to go before others come: objects are kept page by page, while the next one is on its way."""

        def transformed(obj: T) -> T:
            try:
                obj = obj if transform is None else transform(obj)
            except Exception as error:
                failed[key_of(obj)] = error
                return obj
            if is_first:
                self._keep(obj)
            return obj

        page = await self._cluster.list(
            self.view,
            self._namespace,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            transform=transformed if transform is not None or is_first else None,
        )
        self.list_count += 1
        present = {key_of(obj) for obj in page.items}
        present.update(page.unreadable)
        for key in [key for key in self._cache if key not in present]:
            self._remove(key, self._cache[key])
        for obj in page.items:
            error = failed.get(key_of(obj)) if failed else None
            if error is not None:
                self.guard.failed(error, transform)
            elif not is_first:
                self._keep(obj)
        self._version = page.resource_version
        self.failing_since_s = None
        self.synced.set()

    async def _follow(self) -> float:
        assert self._version is not None
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        batches = self._cluster.watch(
            self.view,
            self._namespace,
            resource_version=self._version,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
        )
        has_events = False
        async for batch in batches:
            if batch:
                has_events = True
                self.failing_since_s = None
                self._failed_watches = 0
                self._silent_watches = 0
                self._backoff.reset()
                self._apply(batch)
        if has_events:
            return 0.0
        if loop.time() - started_s >= WATCH_S_MIN:
            self.failing_since_s = None
            self._failed_watches = 0
            self._silent_watches += 1
            if self._silent_watches % SILENT_WATCHES_MAX == 0:
                self._version = None
            return 0.0
        raise errors.ServiceUnavailable("watch ended at once without an event")

    # Applying

    def _apply(self, batch: Sequence[WatchEvent[T]]) -> None:
        for event in batch:
            obj = event.obj
            if obj is not None:
                self.event_count += 1
                if event.type is EventType.DELETED:
                    self._remove(key_of(obj), obj)
                else:
                    self._store(obj)
            if event.resource_version:
                self._version = event.resource_version

    def _store(self, obj: T) -> None:
        if self._transform is None:
            self._keep(obj)
            return
        transformed: T | None = self.guard.answer(self._transform, obj, otherwise=_nothing)
        if transformed is not None:
            self._keep(transformed)

    def _keep(self, obj: T) -> None:
        """Cache what is as it should be cached, and tell the handlers."""
        guard = self.guard
        meta = obj.metadata
        key = (meta.namespace, meta.name)
        old = self._cache.get(key)
        if old is not None:
            if old.metadata.resource_version == meta.resource_version and meta.resource_version:
                return  # a relist brought what we have
            if old.metadata.uid != meta.uid:
                # The deletion in between went by unseen: handlers must not take both for one object.
                self._remove(key, old)
                old = None
        self._cache[key] = obj
        for index in self._indexes.values():
            index.replace(key, old, obj)
        # Not Guard.call: this is what a burst of changes spends its time on.
        if old is None:
            for on_add in self._on_add:
                try:
                    on_add(obj)
                except Exception as error:
                    guard.failed(error, on_add)
            return
        for on_update in self._on_update:
            try:
                on_update(old, obj)
            except Exception as error:
                guard.failed(error, on_update)

    def _remove(self, key: Key, last: T) -> None:
        """Forget an object; `last` is its final state, or our copy when its end was not seen."""
        old = self._cache.pop(key, None)
        if old is None:
            return
        for index in self._indexes.values():
            index.replace(key, old, None)
        if last is not old and self._transform is not None:
            last = self.guard.answer(self._transform, last, otherwise=lambda _: old)
        for on_delete in self._on_delete:
            self.guard.call(on_delete, last)


def _nothing(_: Exception) -> None:
    return None


def key_of(obj: Object) -> Key:
    """Return the key of an object in an informer's cache."""
    return obj.metadata.namespace, obj.metadata.name


class _Index(Generic[T]):
    """Keys by value. Ordered (dict, not set), so that runs repeat."""

    def __init__(self, values: Callable[[T], Iterable[str]], guard: Guard) -> None:
        self.values = values
        self._guard = guard
        self._keys: dict[str, dict[Key, None]] = {}

    def keys_of(self, value: str) -> Iterable[Key]:
        return self._keys.get(value, {})

    def replace(self, key: Key, old: T | None, new: T | None) -> None:
        # What the function gave for the old object is asked again: to keep it would take more room than the index.
        before = self._evaluate(old) if old is not None else ()
        after = self._evaluate(new) if new is not None else ()
        if before == after:
            return
        for value in before:
            if value not in after:
                keys = self._keys[value]
                del keys[key]
                if not keys:
                    del self._keys[value]
        for value in after:
            self._keys.setdefault(value, {})[key] = None

    def _evaluate(self, obj: T) -> tuple[str, ...]:
        found = self._guard.answer(self._listed, obj, otherwise=_nothing) or ()
        return tuple(dict.fromkeys(found)) if len(found) > 1 else found

    def _listed(self, obj: T) -> tuple[str, ...]:
        return tuple(self.values(obj))


class InformerFactory:
    """One informer per view, namespace and selectors, shared by all who ask.

    `namespace` restricts those of namespaced kinds that are asked for without one; empty: no restriction.
    `transforms` are those of views of which not all is to be cached.
    """

    def __init__(
        self,
        cluster: Cluster,
        rng: random.Random,
        *,
        namespace: str = "",
        transforms: Mapping[type[Object], Callable[[Any], Any]] = MappingProxyType({}),
    ) -> None:
        self._cluster = cluster
        self._transforms = transforms
        self._own_namespace = namespace
        self._rng = rng
        self._informers: dict[tuple[type[Object], str, str, str], Informer[Any]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._tasks: list[asyncio.Task[NoReturn]] = []

    def informer(
        self, view: type[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> Informer[T]:
        """Return the shared informer; it runs at once when the factory has been started."""
        if not namespace and view.resource.namespaced:
            namespace = self._own_namespace
        identity = (view, namespace, label_selector, field_selector)
        found = self._informers.get(identity)
        if found is None:
            found = Informer(
                self._cluster,
                view,
                namespace,
                rng=new_rng(self._rng),
                label_selector=label_selector,
                field_selector=field_selector,
                transform=self._transforms.get(view),
            )
            self._informers[identity] = found
            if self._group is not None:
                self._spawn(found)
        return cast(Informer[T], found)

    def start(self, group: asyncio.TaskGroup) -> None:
        """Run all informers, those asked for later too, as tasks of `group`, until `stop`."""
        assert self._group is None, "started twice"
        self._group = group
        for informer in self._informers.values():
            self._spawn(informer)

    async def wait_synced(self) -> None:
        """Until every informer asked for so far has its first list."""
        for informer in list(self._informers.values()):
            await informer.synced.wait()

    @property
    def failing_since_s(self) -> float | None:
        """Since when the API server has failed some informer without a break; None: it serves all of them."""
        since = [each.failing_since_s for each in self._informers.values()]
        return min((each for each in since if each is not None), default=None)

    async def resync(self) -> None:
        """Hand all cached objects to the handlers of updates again."""
        for informer in list(self._informers.values()):
            await informer.resync()

    async def stop(self) -> None:
        """End all informers; their caches stay readable."""
        self._group = None
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _spawn(self, informer: Informer[Any]) -> None:
        assert self._group is not None
        self._tasks.append(self._group.create_task(informer.run(), name=informer.guard.name))
