"""The JSON rules that all annotation payloads share."""

import json
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import labels
from koordinator.api.annotations import device, koordlet, placement
from koordinator.api.annotations.codec import Annotation, Empty, Int32, NotNull, Payload, Seconds, Time
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import RawQuantity, ResourceList


class Part(Payload, frozen=True, kw_only=True):
    id: Int32
    label: str = ""


class Sample(Payload, frozen=True, kw_only=True):
    must: int
    text: str = ""
    flag: bool = False
    choice: bool | None = None
    ratio: float = 0.0
    amount: RawQuantity | None = None
    amounts: ResourceList = {}
    wait: Seconds = 0.0
    waits: list[Seconds] = []
    at: Time | None = None
    parts: list[Part] = []
    firm: list[Annotated[Part, NotNull]] = []
    sizes: dict[int, list[int]] = {}
    free: dict[str, Any] = {}


SAMPLE = Annotation("example.com/sample", Sample)


def decode(**members: Any) -> Sample:
    return SAMPLE.decode(json.dumps(members))


def test_members_match_exactly_before_they_match_without_case() -> None:
    assert SAMPLE.decode('{"TEXT":"a"}').text == "a"
    assert SAMPLE.decode('{"text":"a","TeXt":"b"}').text == "b"
    assert SAMPLE.decode('{"text":"a","text":"b"}').text == "b"


def test_null_is_as_if_the_member_were_absent_and_a_null_document_sets_nothing() -> None:
    assert decode(text=None, parts=None, choice=None, amounts=None) == Sample(must=0)
    assert SAMPLE.decode(" null\n") == Sample(must=0)


def test_unknown_members_are_ignored() -> None:
    assert decode(must=1, other={"x": [1]}) == Sample(must=1)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "{",
            '{"must":1} x',
            "{'must':1}",
            "[]",
            "1",
            '"{}"',
            '{"must":NaN}',
            '{"ratio":Infinity}',
        ),
        *('{"must":1.0}', '{"must":1e2}', '{"must":"1"}', '{"must":true}', '{"must":9223372036854775808}'),
        *(
            '{"text":1}',
            '{"flag":"true"}',
            '{"flag":1}',
            '{"ratio":"1.5"}',
            '{"ratio":1e999}',
            '{"ratio":true}',
        ),
        *(
            '{"amount":""}',
            '{"amount":true}',
            '{"amount":{}}',
            '{"amounts":{"cpu":"x"}}',
            '{"amounts":["cpu"]}',
        ),
        *('{"wait":5}', '{"wait":""}', '{"wait":"5"}', '{"at":"yesterday"}', '{"at":"2024-13-01T00:00:00Z"}'),
        *('{"parts":{}}', '{"parts":[1]}', '{"parts":[{"id":2147483648}]}', '{"firm":[null]}'),
        *(
            '{"sizes":{"two":[]}}',
            '{"sizes":{"2":["1"]}}',
            '{"free":[]}',
            "[" * 100_000,
            '{"must":' + "9" * 5000 + "}",
        ),
    ],
)
def test_a_malformed_document_is_refused_with_object_and_key(text: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        SAMPLE.read({SAMPLE.key: text}, "Pod default/web-0")
    assert str(caught.value).startswith("Pod default/web-0: example.com/sample: ")


def test_the_reason_says_where_and_what() -> None:
    with pytest.raises(ProtocolError, match=r"parts\[1\]\.id: expected an integer, got text"):
        decode(parts=[{"id": 1}, {"id": "2"}])
    with pytest.raises(ProtocolError, match=r"amounts\.cpu: '4 cores' is not a quantity"):
        decode(amounts={"cpu": "4 cores"})


def test_quantities_keep_the_literal_text_of_bare_numbers() -> None:
    sample = SAMPLE.decode('{"amount":0.1,"amounts":{"cpu":4.5,"memory":1024,"pods":null}}')
    assert sample.amount == "0.1"
    assert sample.amounts == {"cpu": "4.5", "memory": 1024, "pods": "0"}


def test_a_null_item_is_an_empty_one_unless_the_type_forbids_it() -> None:
    assert decode(parts=[None]).parts == [Part(id=0)]
    with pytest.raises(ProtocolError, match=r"waits\[1\]: expected text, got null"):
        decode(waits=["5m", None])


def test_empty_text_means_what_the_key_says() -> None:
    for empty, expected in ((Empty.ABSENT, None), (Empty.NOTHING_SET, Sample(must=0))):
        annotation = Annotation("example.com/sample", Sample, empty=empty)
        assert annotation.read({annotation.key: ""}) == expected
    assert SAMPLE.read({}) is None


def test_encoding_is_compact_ordered_and_leaves_out_what_is_empty() -> None:
    assert SAMPLE.encode(Sample(must=0)) == '{"must":0}'
    full = Sample(
        must=1,
        text="<a&b>",
        choice=False,
        ratio=2.0,
        amount="2000m",
        amounts={"memory": "1024Mi", "cpu": 0},
        wait=90.0,
        parts=[Part(id=0)],
        sizes={10: [1], 2: []},
        free={"b": 1.5, "a": None},
    )
    assert SAMPLE.encode(full) == (
        r'{"must":1,"text":"\u003ca\u0026b\u003e","choice":false,"ratio":2,"amount":"2",'
        r'"amounts":{"cpu":"0","memory":"1Gi"},"wait":"1m30s","parts":[{"id":0}],'
        r'"sizes":{"10":[1],"2":[]},"free":{"a":null,"b":1.5}}'
    )


samples = st.builds(
    Sample,
    must=st.integers(-(2**63), 2**63 - 1),
    text=st.text(st.characters(codec="utf-8"), max_size=20),
    flag=st.booleans(),
    choice=st.none() | st.booleans(),
    ratio=st.floats(allow_nan=False, allow_infinity=False),
    amounts=st.dictionaries(st.sampled_from(["cpu", "memory"]), st.sampled_from(["1", "500m", "2Gi"])),
    wait=st.integers(0, 10**6).map(float),
    parts=st.lists(st.builds(Part, id=st.integers(0, 9), label=st.sampled_from(["", "x"])), max_size=3),
    sizes=st.dictionaries(st.integers(0, 9), st.lists(st.integers(0, 9), max_size=3), max_size=3),
)


@given(samples)
def test_what_is_encoded_decodes_to_the_same_and_to_the_same_text(sample: Sample) -> None:
    text = SAMPLE.encode(sample)
    assert SAMPLE.decode(text) == sample
    assert SAMPLE.encode(SAMPLE.decode(text)) == text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["must", "parts", "gpu", "minor", "resources", "policy"]), inner, max_size=3
        )
    ),
    max_leaves=12,
)


@pytest.mark.parametrize(
    "annotation",
    [SAMPLE, device.DEVICE_ALLOCATED, placement.RESOURCE_STATUS, koordlet.RESCTRL, koordlet.CPU_QOS],
    ids=lambda annotation: annotation.key,
)
@given(value=json_values)
def test_any_json_is_either_a_payload_or_a_protocol_error(annotation: Annotation[Any], value: Any) -> None:
    text = json.dumps(value)
    try:
        payload = annotation.decode(text)
    except ProtocolError as error:
        assert error.field == annotation.key
    else:
        assert annotation.decode(annotation.encode(payload)) is not None


def test_a_range_in_a_payload_is_part_of_its_format() -> None:
    with pytest.raises(ProtocolError, match="groupIdentity 3"):
        koordlet.CPU_QOS.decode('{"groupIdentity":3}')
    assert koordlet.CPU_QOS.decode('{"groupIdentity":-1}').group_identity == -1


def test_every_key_constant_is_known_once() -> None:
    keys = {name: value for name, value in vars(labels).items() if name.isupper() and isinstance(value, str)}
    assert len(set(keys.values())) == len(keys)
