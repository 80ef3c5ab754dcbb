"""Two clusters, one of which lends its idle nodes to the other."""

from koordinator.api import labels
from tests.virtual_node.world import LENT, World, run


def test_a_pod_on_the_virtual_node_runs_in_the_lender_and_its_status_comes_back() -> None:
    async def scenario(world: World) -> None:
        async with world.lending():
            await world.offers("57600m")  # two nodes of 32 cores, less a tenth
            await world.borrow("job")

            pod = await world.phase("job", "Running")

            [lent] = (await world.lender.pods(LENT)).values()
            assert lent.metadata.name == f"default-job-{pod.metadata.uid[:8]}"
            assert lent.spec["priorityClassName"] == "koord-batch"
            assert lent.metadata.labels[labels.QOS_CLASS] == "BE"
            assert lent.spec["automountServiceAccountToken"] is False
            assert pod.status["podIP"] == "10.0.0.7"

    run(scenario)
