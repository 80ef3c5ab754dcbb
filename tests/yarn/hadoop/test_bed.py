"""The YARN that other tests stand on is one: it elects, runs jobs, and survives its leader."""

from pathlib import Path

from tests.yarn.hadoop.bed import NodeSize, hadoop, until


async def test_a_mapreduce_job_takes_containers_of_a_node_and_gives_them_back(tmp_path: Path) -> None:
    async with hadoop(tmp_path, nodes=[NodeSize(3, 1024)]) as bed:
        [node] = bed.nodes

        job = await bed.sleep_job(tasks=2, seconds=3)

        async def is_full() -> bool:
            return (await bed.used())[node.node_id].vcores == 3

        async def is_empty() -> bool:
            return not job.is_running and (await bed.used())[node.node_id].vcores == 0

        await until(is_full, "ApplicationMaster and two tasks do not run")
        await until(is_empty, "the job does not end")
        assert "completed successfully" in job.log.read_text()


async def test_the_other_resource_manager_takes_over(tmp_path: Path) -> None:
    async with hadoop(tmp_path) as bed:
        first = await bed.active()

        await first.daemon.kill()

        second = await bed.active()
        assert second.id != first.id

        async def knows_the_node() -> bool:
            return bool(await bed.totals())

        await until(knows_the_node, "the NodeManager does not register with the new leader")
