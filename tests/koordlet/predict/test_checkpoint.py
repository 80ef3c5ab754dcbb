"""Models survive a restart of the agent, and a file of no use is refused by name."""

import pytest

from koordinator.koordlet.errors import ModelError
from koordinator.koordlet.predict import models
from koordinator.koordlet.predict.histogram import CPU_BUCKETS, HistogramCheckpoint
from koordinator.koordlet.predict.models import ModelCheckpoint
from tests.koordlet.predict.scalar_histogram import Histogram

EMPTY = HistogramCheckpoint(0.0, {})


def test_a_model_reads_back_as_it_was_written() -> None:
    cpu = Histogram(CPU_BUCKETS, half_life_s=43_200.0)
    cpu.add(4.0, 1.0, 1_700_000_000.0)
    model = ModelCheckpoint("pod-uid", cpu.checkpoint(), EMPTY, 1_700_000_000.0)

    assert models.decode_checkpoint("pod-uid", models.encode_checkpoint(model)) == model


def test_a_file_of_the_reference_is_understood() -> None:
    histogram = '{"referenceTimestamp":"2023-11-15T00:00:00Z","bucketWeights":{"49":10000,"62":7498},"totalWeight":9.5}'
    content = f'{{"UID":"u","CPU":{histogram},"Memory":{{"referenceTimestamp":null,"totalWeight":0}},'
    model = models.decode_checkpoint("u", f'{content}"LastUpdated":"2023-11-15T10:00:00Z"}}'.encode())

    assert model.cpu == HistogramCheckpoint(9.5, {49: 10000, 62: 7498}, 1_700_006_400.0)
    assert model.memory == EMPTY


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"UID":1}', b"\xff"])
def test_a_file_that_is_no_model_is_refused_by_name(content: bytes) -> None:
    with pytest.raises(ModelError) as refused:
        models.decode_checkpoint("pod-uid", content)
    assert refused.value.subject == "pod-uid"
