"""Tidal pools on a cluster in this process: nodes are lent at night and are back in the morning."""

from tests.manager.tidal.world import BATCH, TideWorld, run


def test_nodes_are_lent_while_a_window_is_open_and_are_back_before_it_ends() -> None:
    async def story(world: TideWorld) -> None:
        await world.deploy("web", 4)
        await world.deploy("train", 2, "7", priority=BATCH)
        await world.pool()
        async with world.manager():
            await world.until("00:20")
            assert set((await world.phases()).values()) == {"online"}

            await world.until("01:30")
            phases = await world.phases()
            assert sorted(phases.values()) == ["batch", "batch", "online", "online"]
            on = {pod.spec.node_name for pod in await world.pods(app="web")}
            assert on == {name for name, phase in phases.items() if phase == "online"}
            train = await world.pods(app="train")
            assert {pod.spec.node_name for pod in train} == phases.keys() - on

            await world.until("06:31")
            assert set((await world.phases()).values()) <= {"online", "to-online"}
            await world.until("06:35")
            assert set((await world.phases()).values()) == {"online"}

    run(story)
