"""The changes of docs/first-changes.md touch the files that it names and no others: their text runs as it is.

Strategy and hook are one file and a line each, a score plugin is one file and an entry point.
"""

import re
import sys
import tomllib
import types
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from koordinator.api.slo import NodeSLOSpec
from koordinator.cli import koordlet_flags
from koordinator.cluster.plugin_registry import read_entries
from koordinator.host.cgroup_knobs import V2, Knob
from koordinator.koordlet import agent
from koordinator.koordlet.hooks import all as hooks
from koordinator.koordlet.hooks.hook import Hook
from koordinator.koordlet.qos import evictions
from koordinator.koordlet.qos.eviction_strategy import EvictionStrategy
from koordinator.koordlet.qos.shadow import Part, ShadowMode
from koordinator.scheduler.plugin.framework import ENTRY_POINTS, Plugin, ScorePlugin
from koordinator.scheduler.plugins.built_in import PLUGINS
from tests.cluster import virtual_loop
from tests.koordlet.hooks.hook_node import HookNode, native, pod
from tests.koordlet.qos.acting_node import ActingNode, acting, make_pod

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "first-changes.md"
GATE = "BECountEvict"


def defined(heading: str, name: str) -> type:
    """The class that the first block of code below a heading defines."""
    section = PAGE.read_text().partition(f"## {heading}\n")[2]
    code = re.search(r"```python\n(.*?)```", section, re.S)
    assert code is not None
    module = types.ModuleType(name)
    exec(code[1], module.__dict__)
    found = module.__dict__[name]
    assert isinstance(found, type)
    return found


@pytest.fixture
def strategy() -> type[EvictionStrategy]:
    found = defined("An eviction strategy", GATE)
    assert issubclass(found, EvictionStrategy)
    return found


def test_one_file_and_one_line_make_an_eviction_strategy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: type[EvictionStrategy]
) -> None:
    monkeypatch.setattr(evictions, "STRATEGIES", (*evictions.STRATEGIES, strategy))

    async def scenario() -> None:
        node = ActingNode(tmp_path, gates=f"{GATE}=true")
        (found,) = (each for each in acting(node.shared, ShadowMode(node.shared)) if each.name == GATE)
        assert isinstance(found, Part) and isinstance(found.live, EvictionStrategy)
        assert agent.is_on(found, node.shared.gates)
        node.set_pods([make_pod(name, priority=5000 + at) for at, name in enumerate("abc")])
        node.view.slo = NodeSLOSpec(extensions={"eviction": {GATE: {"podsMax": 2}}})
        await found.run()
        assert node.api.names == ["a"]
        words = f"trigger by koordlet feature {GATE} (3 best-effort pods, 2 allowed), kill pod: a"
        assert node.events.recorded[0][2] == words

    virtual_loop.run(scenario())
    given = koordlet_flags.of(_defaults() | {"be_count_evict_cool_time_seconds": 7}, {"NODE_NAME": "n"})
    assert not given.gates.is_on(GATE)
    assert strategy.cool_down.of(given.config.qos) == 7


def _defaults() -> dict[str, object]:
    import click

    command = koordlet_flags.options(click.command("koordlet")(lambda **_: None))
    return {param.name: param.get_default(click.Context(command)) for param in command.params}


def test_one_file_and_one_line_make_a_runtime_hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = defined("A runtime hook", "MemoryLow")
    assert issubclass(kind, Hook)
    monkeypatch.setattr(hooks, "HOOKS", (*hooks.HOOKS, kind))
    node = HookNode(tmp_path, gates="MemoryLow=true", version=V2)
    key = "example.com/memory-low-bytes"
    asking, malformed = (
        pod(name, "LS", resources=[native("1")], annotations={key: value})
        for name, value in (("asking", "4096"), ("malformed", "much"))
    )

    node.run_pods(asking, malformed)
    node.hooks.start()

    assert node.says(Knob.MEMORY_LOW, node.view.pods["asking"].group) == "4096"
    assert node.says(Knob.MEMORY_LOW, node.view.pods["malformed"].group) == "0"
    off = node.restarted()
    off.hooks.start()
    assert off.says(Knob.MEMORY_LOW, off.view.pods["asking"].group) == "0"


def test_one_file_of_ones_own_makes_a_score_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (DOCS / "write-a-plugin.md").read_text()
    files = dict(re.findall(r"`([a-z_]+\.[a-z]+)`:\n```[a-z]+\n(.*?)```", page, re.S))
    sources = [name for name in files if name.endswith(".py") and not name.startswith("test_")]
    (source,) = sources
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    (own_test,) = (name for name in files if name.startswith("test_"))
    for name in (source, own_test):
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)

    offered = tomllib.loads(files["pyproject.toml"])["project"]["entry-points"][ENTRY_POINTS]
    plugins = read_entries(
        Plugin, PLUGINS, [EntryPoint(name, at, ENTRY_POINTS) for name, at in offered.items()]
    )

    assert plugins.unusable == {}
    (added,) = (plugin for name, plugin in plugins.items() if name not in PLUGINS)
    assert issubclass(added, ScorePlugin) and added.__module__ == source.removesuffix(".py")
    tests = types.ModuleType("tests_of_the_page")
    tests.__file__ = str(tmp_path / own_test)
    exec(files[own_test], tests.__dict__)
    monkeypatch.setitem(tests.__dict__, "installed_plugins", lambda: plugins)
    ran = [run() for name, run in vars(tests).copy().items() if name.startswith("test_")]
    assert len(ran) == 2
    for name in (source, own_test):
        sys.modules.pop(name.removesuffix(".py"), None)
