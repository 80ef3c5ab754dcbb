"""Plugins of other packages: found by entry point, and harmless when they are broken."""

import logging
import sys
import textwrap
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from koordinator.clock import FixedClock
from koordinator.cluster.plugin_registry import PluginRegistry, read_entries
from koordinator.scheduler.config import config, default_plugins
from koordinator.scheduler.config.config import PluginRef, PluginSet, SchedulerConfig, SchedulerConfigError
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.plugin.framework import ENTRY_POINTS, Plugin
from koordinator.scheduler.plugins import built_in

MODULE = """
    from koordinator.scheduler.plugin_api import ScorePlugin

    class Good(ScorePlugin[None]):
        name = "Good"

        def score(self, state, rows):
            return rows

    class Unfinished(ScorePlugin[None]):
        name = "Unfinished"

    NUMBER = 7
"""


@pytest.fixture
def strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "strange_good.py").write_text(textwrap.dedent(MODULE))
    (tmp_path / "strange_bad.py").write_text("raise RuntimeError('no GPU here')")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in ("strange_good", "strange_bad"):
        sys.modules.pop(name, None)


def entry(name: str, value: str) -> metadata.EntryPoint:
    return metadata.EntryPoint(name, value, ENTRY_POINTS)


def read(*entries: tuple[str, str]) -> PluginRegistry[Plugin[Any]]:
    return read_entries(Plugin, built_in.PLUGINS, [entry(*each) for each in entries])


def asking_for(name: str) -> SchedulerConfig:
    plugins = config.Plugins(score=PluginSet(enabled=[PluginRef(name=name)]))
    return SchedulerConfig(profiles=[config.ProfileConfig(plugins=plugins)])


@pytest.mark.usefixtures("strangers")
def test_a_plugin_of_a_package_stands_beside_the_built_in_ones() -> None:
    found = read(("Good", "strange_good:Good"))
    assert set(found) == {*built_in.PLUGINS, "Good"}
    profile = Engine(asking_for("Good"), FixedClock(), plugins=found).profiles["koord-scheduler"]
    assert profile.scorers[-1][0].name == "Good"


@pytest.mark.usefixtures("strangers")
@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        pytest.param("Bad", "strange_bad:Bad", "RuntimeError: no GPU here", id="fails to import"),
        pytest.param("Gone", "strange_nowhere:Gone", "ModuleNotFoundError", id="no such module"),
        pytest.param("Absent", "strange_good:Absent", "AttributeError", id="no such name"),
        pytest.param("Number", "strange_good:NUMBER", "no subclass of koordinator", id="no plugin"),
        pytest.param("Other", "strange_good:Good", "calls itself 'Good'", id="another name"),
        pytest.param("Unfinished", "strange_good:Unfinished", "lacks score", id="a method is missing"),
    ],
)
def test_a_broken_plugin_is_a_warning_unless_it_is_asked_for(
    name: str, value: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        found = read((name, value))
    assert why in caplog.text

    Engine(default_plugins.shipped_config(), FixedClock(), plugins=found)
    with pytest.raises(SchedulerConfigError) as caught:
        Engine(asking_for(name), FixedClock(), plugins=found)
    assert f"plugin {name!r} is installed and cannot be used" in str(caught.value)
    assert why in str(caught.value)
    assert value in str(caught.value)


@pytest.mark.usefixtures("strangers")
def test_a_package_cannot_take_the_name_of_a_built_in_plugin(caplog: pytest.LogCaptureFixture) -> None:
    found = read(("NodeResourcesFit", "strange_good:Good"))
    assert found["NodeResourcesFit"] is built_in.PLUGINS["NodeResourcesFit"]
    assert "takes the name of a built-in plugin" in caplog.text


@pytest.mark.usefixtures("strangers")
def test_of_two_packages_with_one_name_neither_is_used() -> None:
    found = read(("Good", "strange_good:Good"), ("Good", "strange_good:NUMBER"))
    assert "Good" not in found
    assert "both offer it" in found.unusable["Good"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        pytest.param("NodeResourceFit", "did you mean 'NodeResourcesFit'?", id="a letter is missing"),
        pytest.param("loadawarescheduling", "did you mean 'LoadAwareScheduling'?", id="wrong case"),
        pytest.param("Reservations", "did you mean 'Reservation'?", id="one that this version leaves out"),
        pytest.param("Zzz", "entry points of the group", id="nothing like it"),
    ],
)
def test_an_unknown_name_is_refused_with_what_was_probably_meant(name: str, hint: str) -> None:
    with pytest.raises(SchedulerConfigError) as caught:
        Engine(asking_for(name), FixedClock(), plugins=built_in.PLUGINS)
    assert f"plugins.score.enabled: no plugin is called {name!r}" in str(caught.value)
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("pre_bind", "is_there"),
    [
        pytest.param(PluginSet(), True, id="added"),
        pytest.param(
            PluginSet(enabled=[PluginRef(name="DefaultPreBind")]), True, id="there already: not twice"
        ),
        pytest.param(PluginSet(disabled=[PluginRef(name="DefaultPreBind")]), False, id="disabled"),
        pytest.param(PluginSet(disabled=[PluginRef(name="*")]), False, id="all disabled"),
    ],
)
def test_default_pre_bind_is_added_to_profiles_with_plugins(pre_bind: PluginSet, is_there: bool) -> None:
    profile = config.ProfileConfig(plugins=config.Plugins(pre_bind=pre_bind))
    engine = Engine(SchedulerConfig(profiles=[profile]), FixedClock(), plugins=built_in.PLUGINS)
    names = [plugin.name for plugin in engine.profiles["koord-scheduler"].pre_binds]
    assert names.count("DefaultPreBind") == int(is_there)


def test_a_profile_without_a_plugins_section_has_no_default_pre_bind() -> None:
    engine = Engine(
        SchedulerConfig(profiles=[config.ProfileConfig()]), FixedClock(), plugins=built_in.PLUGINS
    )
    names = [plugin.name for plugin in engine.profiles["koord-scheduler"].pre_binds]
    assert names == ["VolumeBinding", "DynamicResources"]
