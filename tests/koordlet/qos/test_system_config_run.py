"""Kernel settings: written, put back when they are not configured any more, right after any kill."""

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api.slo import NodeSLOSpec, SystemStrategy
from koordinator.koordlet.qos.system_config import SystemConfigStrategy
from koordinator.koordlet.states.node import with_defaults
from tests.cluster import virtual_loop
from tests.host import host_tree
from tests.koordlet.qos import killed
from tests.koordlet.qos.acting_node import ActingNode
from tests.koordlet.qos.killed import Killed, MortalFiles

FILES = {
    "proc/sys/vm/min_free_kbytes": "67584",
    "proc/sys/vm/watermark_scale_factor": "10",
    "proc/sys/kernel/sched_group_identity_enabled": "0",
    "proc/sys/kernel/sched_idle_saver_wmark": "0",
    "sys/kernel/mm/memcg_reaper/reap_background": "0",
    "sys/kernel/mm/pagecache_limit/enabled": "0",
    "sys/kernel/debug/sched/features": "PLACE_LAG NO_HRTICK WA_BIAS",
}
ONE_PERCENT_OF_100_GIB_KIB = 2**20


def on_virtual_time(scenario: Coroutine[Any, Any, None]) -> None:
    virtual_loop.run(scenario)


def slo_of(**fields: Any) -> NodeSLOSpec:
    return with_defaults(NodeSLOSpec(system_strategy=SystemStrategy(**fields)))


def node_of(root: Path, at: int = 0, *, after: bool = False) -> ActingNode:
    if not (root / "sys").exists():
        host_tree.group(root, host_tree.V1, "kubepods")
        host_tree.write(root, FILES)
    return ActingNode(root, host=killed.mortal_host(root, at, after=after))


def says(root: Path) -> dict[str, str]:
    return {name: (root / name).read_text().strip() for name in FILES}


def test_settings_are_written_and_put_back_one_by_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = node_of(tmp_path)
        strategy = SystemConfigStrategy(node.shared)
        node.view.slo = slo_of(
            min_free_kbytes_factor=100,
            watermark_scale_factor=150,
            page_cache_limit_enabled=1,
            sched_features={"HRTICK": True, "PLACE_LAG": False, "WA_BIAS": True},
        )
        await strategy.run()
        assert says(tmp_path) == FILES | {
            "proc/sys/vm/min_free_kbytes": str(ONE_PERCENT_OF_100_GIB_KIB),
            "proc/sys/vm/watermark_scale_factor": "150",
            "sys/kernel/mm/pagecache_limit/enabled": "1",
            "sys/kernel/debug/sched/features": "NO_PLACE_LAG HRTICK WA_BIAS",
        }

        node.view.slo = slo_of(watermark_scale_factor=200, sched_features={"HRTICK": True})
        await strategy.run()
        assert says(tmp_path) == FILES | {
            "proc/sys/vm/watermark_scale_factor": "200",
            "sys/kernel/debug/sched/features": "PLACE_LAG HRTICK WA_BIAS",
        }

        node.view.slo = slo_of()
        await strategy.run()
        assert says(tmp_path) == FILES
        assert node.shared.executor.owners() == []

    on_virtual_time(scenario())


def test_what_somebody_else_set_meanwhile_stays(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = node_of(tmp_path)
        strategy = SystemConfigStrategy(node.shared)
        node.view.slo = slo_of(watermark_scale_factor=150)
        await strategy.run()
        (tmp_path / "proc/sys/vm/watermark_scale_factor").write_text("77\n")
        node.view.slo = slo_of()
        await strategy.run()

        assert says(tmp_path)["proc/sys/vm/watermark_scale_factor"] == "77"

    on_virtual_time(scenario())


def test_what_was_undone_by_others_is_set_again_when_the_check_is_due(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = node_of(tmp_path)
        strategy = SystemConfigStrategy(node.shared)
        node.view.slo = slo_of(watermark_scale_factor=150)
        await strategy.run()
        (tmp_path / "proc/sys/vm/watermark_scale_factor").write_text("10\n")
        await asyncio.sleep(60)
        await strategy.run()

        assert says(tmp_path)["proc/sys/vm/watermark_scale_factor"] == "150"

    on_virtual_time(scenario())


def test_missing_files_and_contradicting_features_harm_nothing_else(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = node_of(tmp_path)
        (tmp_path / "sys/kernel/mm/pagecache_limit/enabled").unlink()
        (tmp_path / "sys/kernel/debug/sched/features").write_text("A NO_A\n")
        node.view.slo = slo_of(
            page_cache_limit_enabled=1, watermark_scale_factor=150, sched_features={"A": True}
        )
        await SystemConfigStrategy(node.shared).run()

        assert (tmp_path / "proc/sys/vm/watermark_scale_factor").read_text().strip() == "150"
        assert (tmp_path / "sys/kernel/debug/sched/features").read_text().strip() == "A NO_A"

    on_virtual_time(scenario())


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "min_free_kbytes_factor": st.integers(-5, 20_000),
                "watermark_scale_factor": st.integers(-10, 1_000),
                "memcg_reap_back_ground": st.integers(-1, 3),
                "sched_idle_saver_wmark": st.integers(-5, 2**70),
                "sched_features": st.dictionaries(
                    st.sampled_from(["PLACE_LAG", "HRTICK", "OTHER"]), st.booleans()
                ),
            },
        ),
        max_size=4,
    ),
)
def test_values_never_leave_their_bounds_and_the_end_is_the_beginning(drawn: list[dict[str, Any]]) -> None:
    async def scenario(root: Path) -> None:
        node = node_of(root)
        strategy = SystemConfigStrategy(node.shared)
        for fields in drawn:
            node.view.slo = slo_of(**fields)
            await strategy.run()
            found = {name.rpartition("/")[2]: text for name, text in says(root).items()}
            assert 10_240 <= int(found["min_free_kbytes"]) <= 10_485_760
            assert 10 <= int(found["watermark_scale_factor"]) <= 400
            assert found["reap_background"] in ("0", "1")
            assert 0 <= int(found["sched_idle_saver_wmark"]) < 2**63
        strategy.disable()
        assert says(root) == FILES

    with tempfile.TemporaryDirectory() as directory:
        on_virtual_time(scenario(Path(directory)))


def test_a_kill_at_any_step_is_made_up_for_by_the_next_process(tmp_path: Path) -> None:
    first = slo_of(min_free_kbytes_factor=100, watermark_scale_factor=150, sched_features={"HRTICK": True})
    second = slo_of(watermark_scale_factor=99, sched_features={"WA_BIAS": False})

    async def change(root: Path, at: int = 0, after: bool = False) -> ActingNode:
        node = node_of(root, at, after=after)
        strategy = SystemConfigStrategy(node.shared)
        for slo in (first, second):
            node.view.slo = slo
            await strategy.run()
        return node

    async def scenario() -> None:
        clean = await change(tmp_path / "clean")
        assert isinstance(clean.files, MortalFiles)
        wanted = says(tmp_path / "clean")
        assert clean.files.changes == 7
        for at, after in killed.deaths(clean.files.changes):
            redone, undone = tmp_path / f"{at}{after}-redone", tmp_path / f"{at}{after}-undone"
            for root in (redone, undone):
                with pytest.raises(Killed):
                    await change(root, at, after)

            node = node_of(redone)
            node.view.slo = second
            await SystemConfigStrategy(node.shared).run()
            assert says(redone) == wanted

            SystemConfigStrategy(node_of(undone).shared).disable()
            assert says(undone) == FILES

    on_virtual_time(scenario())
