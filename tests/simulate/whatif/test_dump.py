"""`koordinator dump`: what is in it, and that questions can be asked of it."""

import asyncio
import gzip
import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from koordinator.api import kinds
from koordinator.cli import dump_run
from koordinator.cli import main as cli
from koordinator.clock import FixedClock
from koordinator.cluster.memory import MemoryCluster
from koordinator.cluster.protocol import Cluster
from koordinator.local import cluster as local
from koordinator.local import registry
from koordinator.scheduler.config.default_plugins import shipped_config
from koordinator.simulate import dump as dumps
from koordinator.simulate import dump_write
from tests.simulate.whatif.world import Json, shop


async def cluster() -> Cluster:
    world = shop(2)
    pod = next(each for each in world.items if each["kind"] == "Pod")
    pod["spec"]["containers"][0]["env"] = [{"name": "PASSWORD", "value": "s3cret"}]
    pod["metadata"]["annotations"] = {
        "kubectl.kubernetes.io/last-applied-configuration": "s3cret",
        "kept": "yes",
    }
    for name, data in (("slo-controller-config", {"colocation-config": "{}"}), ("other", {"key": "s3cret"})):
        meta = {"name": name, "namespace": "koordinator-system"}
        world.items.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})
    backend = registry.in_memory(FixedClock(0.0), checks=False)
    served = MemoryCluster(backend)
    await local.install(served)
    for obj in world.objects():
        resource = kinds.by_kind(obj["apiVersion"].rpartition("/")[0], obj["kind"])
        assert resource is not None, obj["kind"]
        namespace = obj["metadata"].get("namespace", "") if resource.namespaced else ""
        backend.store.table(resource.qualified).put(namespace, obj["metadata"]["name"], obj)
    return served


async def written() -> list[Json]:
    found = dump_write.objects(await cluster(), dump_write.views(dumps.views_of(shipped_config())))
    return [msgspec.json.decode(each.line) async for each in found]


async def test_a_dump_has_what_decides_and_no_secrets() -> None:
    objects = await written()

    counts = {
        kind: sum(each["kind"] == kind for each in objects)
        for kind in ("Node", "Pod", "NodeMetric", "ConfigMap")
    }
    assert counts == {"Node": 2, "Pod": 6, "NodeMetric": 2, "ConfigMap": 1}
    assert "s3cret" not in json.dumps(objects)
    assert any(each["metadata"].get("annotations") == {"kept": "yes"} for each in objects)


async def test_a_dump_answers_what_its_cluster_would(tmp_path: Path) -> None:
    lines = b"".join(msgspec.json.encode(each) + b"\n" for each in await written())
    packed, plain = tmp_path / "dump.json.gz", shop(2).dump(tmp_path / "plain.json")
    packed.write_bytes(gzip.compress(lines))

    def answered(file: Path) -> str:
        words = [
            "simulate",
            "colocation",
            "--dump",
            str(file),
            "--strategy",
            "installed",
            "--hours",
            "1",
            "-o",
            "json",
        ]
        result = CliRunner().invoke(cli.main, words)
        assert result.exit_code == 0, result.output
        return result.stdout

    assert await asyncio.to_thread(answered, packed) == await asyncio.to_thread(answered, plain)


def test_a_file_that_could_not_be_finished_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="gone"), dump_run._created(tmp_path / "dump.json.gz") as out:
        out.write(b"{}")
        raise OSError("gone")

    assert list(tmp_path.iterdir()) == []


def test_history_files_need_a_prometheus(tmp_path: Path) -> None:
    words = ["dump", "-o", str(tmp_path / "d.json"), "--cpu-history", str(tmp_path / "cpu.csv")]

    result = CliRunner().invoke(cli.main, words)

    assert result.exit_code == 2 and "go with --prometheus" in result.stderr
