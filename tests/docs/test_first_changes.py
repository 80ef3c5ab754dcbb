"""Strategy and hook of docs/first-changes.md are one file and a line each: their text runs in a node agent as it is."""

import re
import types
from pathlib import Path

import pytest

from koordinator.api.slo import NodeSLOSpec
from koordinator.cli import koordlet_flags
from koordinator.host.cgroup_knobs import V2, Knob
from koordinator.koordlet import agent
from koordinator.koordlet.hooks import all as hooks
from koordinator.koordlet.hooks.hook import Hook
from koordinator.koordlet.qos import all as qos
from koordinator.koordlet.qos import evictions
from koordinator.koordlet.qos.eviction_strategy import EvictionStrategy
from tests.cluster import virtual_loop
from tests.koordlet.hooks.hook_node import HookNode, native, pod
from tests.koordlet.qos.acting_node import ActingNode, make_pod

PAGE = Path(__file__).parents[2] / "docs/first-changes.md"
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
        (found,) = (each for each in qos.strategies(node.shared) if each.name == GATE)
        assert isinstance(found, EvictionStrategy) and agent.is_on(found, node.shared.gates)
        node.set_pods([make_pod(name, priority=5000 + at) for at, name in enumerate("abc")])
        node.view.slo = NodeSLOSpec(extensions={"eviction": {GATE: {"podsMax": 2}}})
        await found.run()
        assert node.api.names == ["a"]
        words = f"trigger by koordlet feature {GATE} (3 best-effort pods, 2 allowed), kill pod: a"
        assert node.events.told[0][2] == words

    virtual_loop.run(scenario())
    given = koordlet_flags.of(_defaults() | {"be_count_evict_cool_time_seconds": 7}, {"NODE_NAME": "n"})[0]
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
