"""The registry against a model of a few lines: any sequence of writes ends in the same objects."""

import asyncio
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from koordinator.cluster import errors
from koordinator.cluster.backend import DeleteRequest, ListOptions, Subscription
from koordinator.cluster.protocol import EventType, PatchType
from koordinator.local.registry import ObjectRegistry
from tests.local.registry_builders import backend

NAMES = st.sampled_from(["a", "b", "c"])
VALUES = st.sampled_from(["1", "2", None])
FINALIZERS = st.lists(st.sampled_from(["x.io/a", "x.io/b"]), unique=True, max_size=2)


class Model:
    """One object as the model sees it."""

    def __init__(self, value: str | None, finalizers: list[str]) -> None:
        self.value = value
        self.finalizers = finalizers
        self.is_deleting = False


class RegistryMachine(RuleBasedStateMachine):
    """Creates, patches and deletes config maps; a watch and its replayed state follow along."""

    api: ObjectRegistry
    watch: Subscription

    @initialize()
    def start(self) -> None:
        self.api = backend()
        self.configs = self.api.resolve("", "v1", "configmaps")
        self.model: dict[str, Model] = {}
        self.watched: dict[str, dict[str, Any]] = {}
        self.last_version = self.api.store.version
        options = ListOptions(resource_version=str(self.api.store.version))
        self.watch = self.api.watch(self.configs, "default", options)

    @rule(name=NAMES, value=VALUES, finalizers=FINALIZERS)
    def create(self, name: str, value: str | None, finalizers: list[str]) -> None:
        data = {} if value is None else {"x": value}
        body = {"metadata": {"name": name, "finalizers": list(finalizers)}, "data": data}
        try:
            asyncio.run(self.api.create(self.configs, "default", body))
        except errors.AlreadyExists:
            assert name in self.model
        else:
            assert name not in self.model
            self.model[name] = Model(value, list(finalizers))

    @rule(name=NAMES, value=VALUES)
    def change(self, name: str, value: str | None) -> None:
        was = self.api.store.version
        try:
            patch = {"data": {"x": value}}
            asyncio.run(self.api.patch(self.configs, "default", name, patch, PatchType.MERGE))
        except errors.NotFound:
            assert name not in self.model
        else:
            assert (self.api.store.version == was) == (self.model[name].value == value)
            self.model[name].value = value

    @rule(name=NAMES, finalizers=FINALIZERS)
    def finalize(self, name: str, finalizers: list[str]) -> None:
        try:
            patch = {"metadata": {"finalizers": list(finalizers)}}
            asyncio.run(self.api.patch(self.configs, "default", name, patch, PatchType.MERGE))
        except errors.NotFound:
            assert name not in self.model
        except errors.Invalid:
            assert self.model[name].is_deleting
            assert set(finalizers) - set(self.model[name].finalizers)
        else:
            self.model[name].finalizers = list(finalizers)
            if self.model[name].is_deleting and not finalizers:
                del self.model[name]

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        try:
            _, is_gone = asyncio.run(self.api.delete(self.configs, "default", name, DeleteRequest()))
        except errors.NotFound:
            assert name not in self.model
        else:
            assert is_gone == (not self.model[name].finalizers)
            self.model[name].is_deleting = True
            if is_gone:
                del self.model[name]

    @rule(name=NAMES)
    def write_what_is_outdated(self, name: str) -> None:
        record = self.api.store.table("configmaps").get("default", name)
        if record is None:
            return
        stale = {
            **record.obj,
            "metadata": {**record.obj["metadata"], "resourceVersion": "1"},
            "data": {"x": "9"},
        }
        try:
            asyncio.run(self.api.update(self.configs, "default", name, stale))
        except errors.Conflict:
            return
        raise AssertionError("a stale update went through")

    @invariant()
    def the_objects_are_those_of_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        found = {
            r.obj["metadata"]["name"]: r.obj for r in self.api.list(self.configs, "", ListOptions()).records
        }
        assert list(found) == sorted(self.model)
        for name, obj in found.items():
            expected, meta = self.model[name], obj["metadata"]
            assert (obj.get("data") or {}).get("x") == expected.value
            assert meta.get("finalizers", []) == expected.finalizers
            assert ("deletionTimestamp" in meta) == expected.is_deleting
        assert self.api.store.version >= self.last_version
        self.last_version = self.api.store.version

    @invariant()
    def the_watch_tells_the_same(self) -> None:
        if not hasattr(self, "model"):
            return
        asyncio.run(self._follow())
        stored = self.api.list(self.configs, "default", ListOptions()).records
        assert self.watched == {r.obj["metadata"]["name"]: r.obj for r in stored}

    async def _follow(self) -> None:
        while True:
            try:
                async with asyncio.timeout(0):
                    batch = await anext(aiter(self.watch))
            except TimeoutError:
                return
            for event in batch:
                assert event.record is not None
                name = event.record.obj["metadata"]["name"]
                assert (name in self.watched) == (event.type is not EventType.ADDED)
                if event.type is EventType.DELETED:
                    del self.watched[name]
                else:
                    self.watched[name] = event.record.obj


TestRegistryModel = RegistryMachine.TestCase
TestRegistryModel.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
