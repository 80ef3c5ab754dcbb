"""Hooks of other packages."""

from typing import Any

import pytest

from koordinator.api.core import Pod
from koordinator.api.sigs import ElasticQuota
from koordinator.scheduler.plugin.framework import Handle
from koordinator.scheduler.plugins.elastic_quota import hooks
from koordinator.scheduler.plugins.elastic_quota.hooks import QuotaHook
from koordinator.scheduler.plugins.elastic_quota.quota import QuotaSpec
from tests.scheduler.elastic_quota.test_plugin import member, placed, quota, with_args
from tests.scheduler.world import World, play


class Diary(QuotaHook):
    """Writes down what it hears; refuses pods named in its arguments."""

    def __init__(self, key: str, args: str, handle: Handle) -> None:
        super().__init__(key)
        self.args = args
        self.calls: list[str] = []

    def is_quota_updated(self, old: ElasticQuota, new: ElasticQuota) -> bool:
        return old.metadata.annotations.get("mood") != new.metadata.annotations.get("mood")

    def pre_quota_update(
        self, old: QuotaSpec | None, new: QuotaSpec | None, obj: ElasticQuota, shared: dict[str, Any]
    ) -> None:
        shared["was"] = old.parent if old is not None else ""

    def post_quota_update(
        self, old: QuotaSpec | None, new: QuotaSpec | None, obj: ElasticQuota, shared: dict[str, Any]
    ) -> None:
        what = f"{shared['was']}>{new.parent if new is not None else ''}"
        if not obj.metadata.name.startswith("koordinator"):
            self.calls.append(f"{obj.metadata.name} {what.replace('koordinator-root-quota', 'root')}")

    def on_pod_updated(self, quota: str, old: Pod | None, new: Pod | None) -> None:
        sign = "-" if new is None else "+" if old is None else "="
        self.calls.append(f"{quota} {sign}{(new or old).metadata.name}")  # type: ignore[union-attr]

    def update_quota_status(self, quota: ElasticQuota, patch: dict[str, Any]) -> dict[str, Any] | None:
        if quota.metadata.name != "team" or "heard" in quota.metadata.annotations:
            return None
        own = {**patch.get("metadata", {}).get("annotations", {}), "heard": "yes"}
        return {**patch, "metadata": {"annotations": own}}

    def check_pod(self, quota: str, pod: Pod) -> str:
        if pod.metadata.name == "rude":
            raise RuntimeError("no manners")
        return "not on Sundays" if pod.metadata.name == self.args else ""


def offered(monkeypatch: pytest.MonkeyPatch, made: list[Diary]) -> None:
    def factory(key: str, args: str, handle: Handle) -> QuotaHook:
        made.append(Diary(key, args, handle))
        return made[-1]

    monkeypatch.setattr(hooks, "factories", lambda: {"diary": lambda: factory})


def configured(**more: Any) -> Any:
    return with_args(hookPlugins=[{"key": "mine", "factoryKey": "diary", "factoryArgs": "sunday"}], **more)


def test_hooks_hear_of_quotas_and_pods_and_have_a_say(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Diary] = []
    offered(monkeypatch, made)

    async def story(world: World) -> None:
        world.nodes(1)
        world.api.put("ElasticQuota", quota("dept", high=9, is_parent="true"))
        world.api.put("ElasticQuota", quota("team", high=9))
        for name in ("monday", "sunday", "rude"):
            world.api.put("Pod", member(name, "team", cpu="500m"))
        await world.settle(3)
        [diary] = made

        assert placed(world) == ["monday"]
        refused = "CheckPod failed for hook plugin mine, err: "
        assert f"{refused}not on Sundays" in world.condition("sunday")["message"]
        assert f"{refused}no manners" in world.condition("rude")["message"]
        assert diary.calls[:3] == ["dept >root", "team >root", "team +monday"]
        body = world.api.objects["ElasticQuota"]["quotas", "team"]
        assert body["metadata"]["annotations"]["heard"] == "yes"

        diary.calls.clear()
        body["metadata"]["annotations"]["mood"] = "better"
        world.api.put("ElasticQuota", body)
        await world.settle()
        assert diary.calls == ["team root>root"]

        diary.calls.clear()
        world.api.put("ElasticQuota", quota("team", parent="dept", high=9))
        await world.settle()
        world.api.remove("Pod", "monday", "default")
        await world.settle()
        world.api.remove("ElasticQuota", "team", "quotas")
        await world.settle(2)
        assert diary.calls[:4] == ["team root>", "team >dept", "team -monday", "team dept>"]
        assert "scheduler_elastic_quota_hook_plugin_latency_count" in world.scheduler.metrics.text()

    play(story, configured(), strict=False)


def test_whoever_configures_hooks_wrongly_learns_everything_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(key: str, args: str, handle: Handle) -> QuotaHook:
        raise ValueError(f"{args} is no day")

    monkeypatch.setattr(hooks, "factories", lambda: {"diary": lambda: broken})
    wrong = [
        {"key": "", "factoryKey": "diary"},
        {"key": "a", "factoryKey": "dairy"},
        {"key": "b", "factoryKey": "diary", "factoryArgs": "soon"},
    ]

    async def story(world: World) -> None:
        raise AssertionError("never starts")

    with pytest.raises(ValueError) as caught:
        play(story, with_args(hookPlugins=wrong))

    text = str(caught.value)
    assert "hookPlugins[0]: key and factoryKey must not be empty" in text
    assert "hookPlugins[1] 'a': no package offers the factory 'dairy'" in text
    assert "hookPlugins[2] 'b': ValueError: soon is no day" in text
