"""Training: what was measured is learnt, what was not teaches nothing, and files never cost more than history."""

import logging
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.clock import FixedClock
from koordinator.cluster.memory import MemoryCluster
from koordinator.koordlet.config import PredictConfig
from koordinator.koordlet.errors import ModelError
from koordinator.koordlet.predict import models
from koordinator.koordlet.predict.histogram import HistogramCheckpoint
from koordinator.koordlet.predict.models import NODE, SYSTEM, ModelCheckpoint
from koordinator.koordlet.predict.trainer import Trainer
from koordinator.local import registry
from tests.koordlet.report.agent_node import DAY_S, GIB, NOW_S, AgentNode, node_object, pod_object

PROD_MODEL, BATCH_MODEL = "__node-koord-prod__", "__node-koord-batch__"
CLUSTER = MemoryCluster(registry.in_memory(FixedClock(NOW_S)))
"""Never asked: prediction speaks to nobody."""


def make(root: Path, **config: float) -> AgentNode:
    node = AgentNode(root, CLUSTER, predict=PredictConfig(checkpoints=str(root / "checkpoints"), **config))  # type: ignore[arg-type]
    node.view.node = node_object()
    return node


@pytest.fixture
def node(tmp_path: Path) -> AgentNode:
    return make(tmp_path)


def files(node: AgentNode) -> list[str]:
    directory = node.root / "checkpoints"
    return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []


def minutes(node: AgentNode, trainer: Trainer, count: int, cores: float = 2.0, *pods: str) -> None:
    """Rounds of training with the node and these pods measured."""
    for _ in range(count):
        node.fixed.now_s += 60
        node.use(cores + len(pods), 4 * GIB)
        for uid in pods:
            node.pod_uses(uid, 1.0, GIB)
        trainer.run()


def test_a_round_learns_pods_classes_the_node_and_its_system(node: AgentNode) -> None:
    trainer = Trainer(node.shared)
    node.pods(pod_object("web"), pod_object("job", qos="BE"))
    node.use(5.0, 8 * GIB)
    node.pod_uses("web", 2.0, 2 * GIB)
    node.pod_uses("job", 1.0, GIB)

    trainer.run()

    peaks = {name: amount.cpu_milli for name, amount in trainer.models.peaks(1.0, 1.0).items()}
    assert peaks.keys() == {"web", "job", NODE, SYSTEM, PROD_MODEL, BATCH_MODEL}
    assert peaks["web"] == peaks[PROD_MODEL] == pytest.approx(2000, rel=0.06)
    assert peaks["job"] == peaks[BATCH_MODEL] == pytest.approx(1000, rel=0.06)
    assert peaks[NODE] == pytest.approx(5000, rel=0.06)
    assert peaks[SYSTEM] == pytest.approx(2000, rel=0.06)


def test_the_sample_is_the_90th_percentile_of_the_last_minute(node: AgentNode) -> None:
    trainer = Trainer(node.shared)
    node.pods(pod_object("web"))
    node.pod_uses("web", 99.0, GIB, ago_s=61)
    for second in range(10):
        node.pod_uses("web", 1.0 if second < 9 else 50.0, GIB, ago_s=9 - second)

    trainer.run()

    assert trainer.models.peaks(1.0, 1.0)["web"].cpu_milli == pytest.approx(1000, rel=0.06)


def test_nothing_is_learnt_before_the_pods_are_known(node: AgentNode) -> None:
    trainer = Trainer(node.shared)
    node.use(5.0, 8 * GIB)

    trainer.run()

    assert len(trainer.models) == 0


def test_a_node_that_was_not_measured_teaches_nothing_of_the_system(node: AgentNode) -> None:
    trainer = Trainer(node.shared)
    node.pods(pod_object("web"))
    minutes(node, trainer, 3, 2.0, "web")
    before = trainer.models.peaks(0.95, 1.0)[SYSTEM]

    for _ in range(20):
        node.fixed.now_s += 60
        node.pod_uses("web", 1.0, GIB)
        trainer.run()

    assert trainer.models.peaks(0.95, 1.0)[SYSTEM] == before


def test_running_pods_that_were_not_measured_do_not_pass_for_the_system(node: AgentNode) -> None:
    trainer = Trainer(node.shared)
    node.pods(pod_object("web"))
    node.use(7.0, 8 * GIB)

    trainer.run()

    assert SYSTEM not in trainer.models
    assert NODE in trainer.models


def test_a_class_without_pods_is_predicted_to_use_nothing(node: AgentNode) -> None:
    trainer = Trainer(node.shared)
    node.pods(pod_object("job", qos="BE"))
    minutes(node, trainer, 2, 2.0, "job")

    assert PROD_MODEL not in trainer.models
    assert trainer.prod([]).peak.cpu_milli == pytest.approx(
        2200, rel=0.06
    )  # the system's 2 cores and the margin


def test_what_the_last_pods_of_a_class_used_fades(node: AgentNode) -> None:
    trainer = Trainer(node.shared)
    node.pods(pod_object("job", qos="BE"))
    minutes(node, trainer, 2, 2.0, "job")
    node.pods(pod_object("web"))

    minutes(node, trainer, 60, 2.0, "web")

    assert trainer.models.peaks(0.95, 0.95)[BATCH_MODEL].cpu_milli == 25


def test_pods_that_are_there_but_not_measured_do_not_count_as_idle(node: AgentNode) -> None:
    trainer = Trainer(node.shared)
    node.pods(pod_object("web"))
    minutes(node, trainer, 2, 2.0, "web")
    before = trainer.models.peaks(0.95, 1.0)[PROD_MODEL]

    minutes(node, trainer, 25, 2.0)

    assert trainer.models.peaks(0.95, 1.0)[PROD_MODEL] == before


def test_models_go_with_their_files_when_they_learn_nothing_for_half_an_hour(node: AgentNode) -> None:
    trainer = Trainer(node.shared)
    node.pods(pod_object("web"), pod_object("old"))
    minutes(node, trainer, 1, 2.0, "web", "old")
    assert "old" in files(node)
    node.pods(pod_object("web"))

    minutes(node, trainer, 30, 2.0, "web")
    assert "old" in trainer.models
    minutes(node, trainer, 1, 2.0, "web")

    assert "old" not in trainer.models
    assert "old" not in files(node)
    assert "web" in files(node)


def test_a_row_that_was_given_back_starts_empty(node: AgentNode) -> None:
    trainer = Trainer(node.shared)
    node.pods(pod_object("old"))
    node.pod_uses("old", 60.0, 64 * GIB)
    trainer.run()
    node.pods(pod_object("new"))
    node.fixed.now_s += 1900
    trainer.run()
    assert "old" not in trainer.models
    node.pod_uses("new", 1.0, GIB)

    trainer.run()

    assert trainer.models.peaks(1.0, 1.0)["new"].cpu_milli < 1100


def test_at_most_twelve_checkpoints_are_written_a_minute_and_none_again_for_ten(node: AgentNode) -> None:
    trainer = Trainer(node.shared)
    uids = [f"p{index:02}" for index in range(20)]
    node.pods(*(pod_object(uid) for uid in uids))

    minutes(node, trainer, 1, 2.0, *uids)
    assert len(files(node)) == 12
    minutes(node, trainer, 1, 2.0, *uids)
    assert len(files(node)) == 23  # 20 pods, the node, its system, prod
    first = (node.root / "checkpoints" / files(node)[0]).read_bytes()
    minutes(node, trainer, 9, 2.0, *uids)
    assert (node.root / "checkpoints" / files(node)[0]).read_bytes() == first
    minutes(node, trainer, 1, 2.0, *uids)

    assert (node.root / "checkpoints" / files(node)[0]).read_bytes() != first


def test_a_restart_goes_on_with_what_was_learnt(node: AgentNode) -> None:
    trainer = Trainer(node.shared)
    node.pods(pod_object("web"))
    minutes(node, trainer, 5, 2.0, "web")
    minutes(node, trainer, 12, 2.0, "web")
    learnt = trainer.models.peaks(0.95, 0.98)

    again = Trainer(node.shared)
    node.fixed.now_s += 3600
    again.run()

    assert again.models.peaks(0.95, 0.98) == learnt


def test_files_that_are_of_no_use_are_removed_and_the_others_loaded(
    node: AgentNode, caplog: pytest.LogCaptureFixture
) -> None:
    directory = node.root / "checkpoints"
    directory.mkdir()
    usual = HistogramCheckpoint(1.0, {10: 10_000}, NOW_S)
    good = models.encode_checkpoint(ModelCheckpoint("web", usual, usual, NOW_S))
    ahead = models.encode_checkpoint(ModelCheckpoint(NODE, usual, usual, NOW_S + 2 * DAY_S))
    misfit = HistogramCheckpoint(1.0, {100_000: 1}, NOW_S)
    contents = {
        "web": good,
        "gone": good,
        "half": good[:50],
        "web.tmp": b"{",
        NODE: ahead,
        SYSTEM: models.encode_checkpoint(ModelCheckpoint(SYSTEM, misfit, usual, NOW_S)),
        "big": b"0" * (3 * 1024 * 1024),
    }
    for name, content in contents.items():
        (directory / name).write_bytes(content)
    node.pods(pod_object("web"), pod_object("half"), pod_object("big"))

    trainer = Trainer(node.shared)
    trainer.run()

    assert trainer.models.peaks(0.95, 0.98).keys() == {"web"}
    assert files(node) == ["web"]
    assert caplog.text.count("checkpoint dropped") == 4


def test_checkpoints_of_pods_wait_until_pods_are_known(node: AgentNode) -> None:
    directory = node.root / "checkpoints"
    directory.mkdir()
    usual = HistogramCheckpoint(1.0, {10: 10_000}, NOW_S)
    for name in ("web", SYSTEM):
        (directory / name).write_bytes(models.encode_checkpoint(ModelCheckpoint(name, usual, usual, NOW_S)))
    trainer = Trainer(node.shared)

    node.pods()
    trainer.run()
    assert SYSTEM in trainer.models
    node.pods(pod_object("web"))
    trainer.run()

    assert "web" in trainer.models


def test_a_disk_that_cannot_be_written_is_reported_once_and_leaves_no_half_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("not a directory")
    config = PredictConfig(checkpoints=str(tmp_path / "file"))
    full = AgentNode(tmp_path, CLUSTER, predict=config)
    trainer = Trainer(full.shared)
    full.pods(pod_object("web"))

    minutes(full, trainer, 5, 2.0, "web")

    assert caplog.text.count("checkpoints not written") == 1
    assert "web" in trainer.models
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_keeps_the_old_file_whole(
    node: AgentNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = Trainer(node.shared)
    node.pods(pod_object("web"))
    minutes(node, trainer, 1, 2.0, "web")
    before = {name: (node.root / "checkpoints" / name).read_bytes() for name in files(node)}

    def full(source: str, target: str) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("koordinator.koordlet.predict.models.os.replace", full)
        minutes(node, trainer, 15, 2.0, "web")
    assert {name: (node.root / "checkpoints" / name).read_bytes() for name in files(node)} == before
    assert caplog.text.count("checkpoints not written") == 1

    with caplog.at_level(logging.INFO):
        minutes(node, trainer, 1, 2.0, "web")

    assert "checkpoint writes recovered" in caplog.text
    assert (node.root / "checkpoints" / "web").read_bytes() != before["web"]


def test_prod_peaks_become_what_can_be_lent(node: AgentNode) -> None:
    trainer = Trainer(node.shared)
    pods = [pod_object("web", cpu="4", memory="4Gi"), pod_object("young", cpu="1", age_s=60)]
    node.pods(*pods)
    minutes(node, trainer, 3, 1.0, "web")

    prediction = trainer.prod(pods)

    assert prediction.reclaimable.cpu_milli == pytest.approx(2600, rel=0.1)
    assert node.says("predicted_reclaimable")[("minPredictor", "cpu", "core")] == pytest.approx(
        prediction.reclaimable.cpu_milli / 1000
    )
    assert {labels[0] for labels in node.says("predicted_peak")} == {
        "podReclaimablePredictor",
        "priorityReclaimablePredictor",
        "minPredictor",
    }


def test_finished_pods_count_nothing_however_young(node: AgentNode) -> None:
    trainer = Trainer(node.shared)
    pods = [pod_object("web", cpu="4")]
    node.pods(*pods)
    minutes(node, trainer, 1, 1.0, "web")
    over = [pod_object("done", cpu="7", age_s=60, phase="Succeeded")]

    assert trainer.prod(pods + over) == trainer.prod(pods)


def test_amounts_that_cannot_be_read_lend_nothing_and_stop_nobody(node: AgentNode) -> None:
    trainer = Trainer(node.shared)
    good = pod_object("web", cpu="4")
    node.pods(good)
    minutes(node, trainer, 2, 1.0, "web")

    assert trainer.prod([good, pod_object("odd", cpu="much")]).reclaimable == trainer.prod([good]).reclaimable

    assert node.view.node is not None
    status = msgspec.structs.replace(node.view.node.status, allocatable={"cpu": "many"})
    node.view.node = msgspec.structs.replace(node.view.node, status=status)
    with pytest.raises(ModelError, match=r"status\.allocatable"):
        trainer.prod([good])


def test_without_node_or_system_there_is_no_prediction(node: AgentNode) -> None:
    trainer = Trainer(node.shared)
    with pytest.raises(ModelError, match="__node-sys__"):
        trainer.prod([])
    node.view.node = None
    with pytest.raises(ModelError, match="the node is not known"):
        trainer.prod([])


@settings(max_examples=30, deadline=None)
@given(
    steps_s=st.lists(st.sampled_from([60.0, 60.0, 1800.0, -7200.0, 4e6, -1e7]), min_size=1, max_size=12),
    cores=st.floats(0, 1e6),
    memory=st.floats(0, 1e15),
)
def test_steps_of_the_clock_and_absurd_usage_end_in_bounded_amounts(
    tmp_path_factory: pytest.TempPathFactory, steps_s: list[float], cores: float, memory: float
) -> None:
    node = make(tmp_path_factory.mktemp("node"))
    trainer = Trainer(node.shared)
    pods = [pod_object("web", cpu="4", memory="4Gi")]
    node.pods(*pods)
    for step_s in steps_s:
        node.fixed.now_s += step_s
        node.use(cores, memory)
        node.pod_uses("web", cores / 2, memory / 2)
        trainer.run()

        prediction = trainer.prod(pods)
        assert 0 <= prediction.reclaimable.cpu_milli <= 4000
        assert 0 <= prediction.reclaimable.memory_bytes <= 4 * GIB
