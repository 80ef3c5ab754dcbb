"""What plugins can do beyond the stock extension points, shown with small plugins made for it."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from koordinator.scheduler.capabilities import (
    ApiAnswer,
    ApiProvider,
    ApiRequest,
    BackgroundController,
    ControllerProvider,
    Endpoint,
)
from koordinator.scheduler.config import SchedulerConfig
from koordinator.scheduler.controllers import ControllerFilter, ControllerFilterError
from koordinator.scheduler.framework import PreFilterPlugin, PreFilterResult
from tests.scheduler.extending import with_plugins
from tests.scheduler.world import World, play


class Answering(PreFilterPlugin[None], ApiProvider[None], ControllerProvider[None]):
    name = "Answering"
    per_profile = True
    ticks = 0
    crashes = 0

    def pre_filter(self, state: None) -> PreFilterResult:
        return PreFilterResult()

    def endpoints(self) -> Sequence[Endpoint]:
        return [Endpoint("node/{name}", lambda request: ApiAnswer({"node": request.path["name"]}))]

    def controllers(self) -> Sequence[BackgroundController]:
        return [BackgroundController("ticking", self._tick)]

    async def _tick(self) -> None:
        type(self).ticks += 1
        await asyncio.sleep(3600)


def two_profiles() -> dict[str, Any]:
    options = with_plugins(Answering)
    profile = options["config"].profiles[0]
    other = msgspec.structs.replace(profile, scheduler_name="other")
    return options | {"config": SchedulerConfig(profiles=[profile, other])}


def test_a_plugin_in_two_profiles_runs_its_controllers_and_answers_once() -> None:
    Answering.ticks = 0

    async def story(world: World) -> None:
        await world.settle(1)
        endpoints = world.scheduler.engine.endpoints()
        assert [each.path for each in endpoints["Answering"]] == ["node/{name}"]
        answer = endpoints["Answering"][0].answer(ApiRequest(path={"name": "a"}))
        assert (answer.status, answer.body) == (200, {"node": "a"})

    play(story, **two_profiles())
    assert Answering.ticks == 1


def test_controllers_of_an_unwanted_plugin_do_not_run() -> None:
    Answering.ticks = 0

    async def story(world: World) -> None:
        await world.settle(1)

    play(story, **two_profiles(), controller_filter=ControllerFilter.of(["*", "-Answering"]))
    assert Answering.ticks == 0


def test_a_controller_that_fails_starts_anew_and_costs_nobody_else_anything() -> None:
    class Failing(Answering):
        name = "Failing"

        async def _tick(self) -> None:
            type(self).ticks += 1
            if type(self).ticks < 3:
                raise RuntimeError("broken")
            await asyncio.sleep(3600)

    async def story(world: World) -> None:
        await world.settle(10)

    play(story, strict=False, **with_plugins(Failing))
    assert Failing.ticks == 3


@pytest.mark.parametrize(
    ("entries", "allowed"),
    [
        pytest.param(["*"], {"A", "B"}, id="star means all"),
        pytest.param(["*", "-A"], {"B"}, id="a minus takes out"),
        pytest.param(["A"], {"A"}, id="names alone mean only these"),
        pytest.param(["A", "-A"], set(), id="no wins over yes"),
        pytest.param([], set(), id="nothing means none"),
    ],
)
def test_the_controller_filter_reads_as_the_flag_does(entries: list[str], allowed: set[str]) -> None:
    found = ControllerFilter.of(entries, known=("A", "B"))
    assert {name for name in ("A", "B") if found.allows(name)} == allowed


@pytest.mark.parametrize("entry", ["", "-", "C", "-C"])
def test_a_controller_filter_that_names_nothing_is_refused(entry: str) -> None:
    with pytest.raises(ControllerFilterError):
        ControllerFilter.of([entry], known=("A", "B"))


def test_companions_are_those_of_the_plugins_own_profile() -> None:
    async def story(world: World) -> None:
        for name, profile in world.scheduler.profiles.items():
            (own,) = (plugin for plugin in profile.plugins if plugin.name == "Answering")
            assert own.handle.profile.name == name
            assert own.handle.companions(Answering) == (own,)

    play(story, **two_profiles())
