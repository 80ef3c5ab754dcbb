"""A run over arrays decides as the cluster with real components does, and comes out near it."""

import gzip
import math
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from benchmarks import _object_level as object_level
from benchmarks._object_level import ObjectDay

from koordinator.manager.noderesource.listed import NodeObjects, lent_nodes
from koordinator.simulate import summary
from koordinator.simulate.scenario import Scenario
from koordinator.simulate.whatif import strategy
from koordinator.simulate.whatif.lending import TERMS, Lending, UseReport

pytestmark = pytest.mark.usefixtures("folders_of_examples")
CONFIG = {"colocation-config": '{"enable": true}'}


def machines(path: Path, count: int, seed: int) -> Path:
    """A day of machines with nights, peaks and jumps, in percent per five minutes."""
    rng = np.random.default_rng(seed)
    hours = np.arange(288) / 12
    daily = 1 - 0.6 * np.cos((hours - 3) * 2 * math.pi / 24)
    mean = rng.lognormal(2.2, 0.6, (count, 1))
    noise = rng.lognormal(0, 0.3, (count, 288))
    jumps = (rng.random((count, 288)) < 0.01) * rng.uniform(10, 50, (count, 288))
    percent = np.clip(mean * daily * noise + jumps, 1, 95)
    with gzip.open(path, "wt") as file:
        for number, row in enumerate(percent):
            file.write(f"m{number}," + ",".join(f"{each:.1f}" for each in row) + "\n")
    return path


@cache
def day(nodes: int, hours: float, every: int) -> ObjectDay:
    trace = machines(Path(tempfile.mkdtemp()) / "machines.csv.gz", 2 * nodes, seed=nodes)
    shipped = Scenario(
        nodes=nodes, hours=hours, seed=3, trace=trace, closed_loop=False, batch_demand_ratio=0.42
    )
    return object_level.object_day(shipped, every)


def check_decisions(found: ObjectDay) -> None:
    """Amounts per node at every moment kept: over columns, object by object, and on the Node objects."""
    chosen = strategy.of_config("same", CONFIG)
    for sample in found.samples:
        seen = sample.columns()
        lending = Lending(seen, chosen)
        services, system = seen.services.usage, np.nan_to_num(seen.nodes.system)
        found_terms = lending.decide(UseReport(services, np.zeros_like(system), system))
        decided = found_terms.amounts.T.tolist()

        objects = NodeObjects(sample.nodes, sample.pods, sample.metrics, (), CONFIG)
        by_object = [node.ledgers[0] for node in lent_nodes(objects, sample.at_s)]
        assert decided == [[ledger.cpu_milli, ledger.memory_bytes] for ledger in by_object]
        for row, by_node in enumerate(by_object):
            told = {term.name: (term.cpu_milli, term.memory_bytes) for term in by_node.terms}
            terms = dict(zip(TERMS, map(tuple, found_terms.terms[row].tolist()), strict=True))
            assert {name: amounts for name, amounts in terms.items() if any(amounts)} == {
                name: amounts for name, amounts in told.items() if any(amounts)
            }
        for (cpu, memory), (on_cpu, on_memory) in zip(decided, sample.on_nodes(), strict=True):
            # A node is written when what it should say differs by a tenth, or five minutes after the last time.
            assert abs(cpu - on_cpu) <= 0.1 * max(on_cpu, cpu) + 1
            assert abs(memory - on_memory) <= 0.1 * max(on_memory, memory) + 1


def test_whole_clusters_lend_at_each_moment_what_the_manager_wrote() -> None:
    found = day(12, 2, 6)

    assert len(found.samples) >= 3
    check_decisions(found)


def test_with_the_same_jobs_the_day_comes_out_near() -> None:
    """The benchmark holds a day of 100 nodes against each other; this is a short one of few."""
    found = day(12, 2, 6)

    objects, arrays = summary.summarise(found.result), object_level.array_day(found).figures

    assert arrays.cpu_use == pytest.approx(objects.cpu_use_ratio, rel=0.02)
    assert arrays.lent_cores == pytest.approx(objects.batch_allocatable_cores, rel=0.01)
    growth = objects.latency_p99_ms / objects.latency_p99_alone_ms
    assert 1 + arrays.p99_growth == pytest.approx(growth, rel=0.01)
