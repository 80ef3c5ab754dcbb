"""Bodies that are worth a closer look: many values, many duplicate keys, and texts that only look like them."""

import json
import threading
import time

import pytest

from koordinator.local.apiserver import bodies, calls
from koordinator.local.apiserver.bodies import MalformedBody, TooMuch

MANY = 300_000
OVER = bodies.VALUES_MAX


@pytest.mark.parametrize(
    "text",
    [b"[,{" * MANY, rb"\"[,{" * MANY, b"\\\\" * MANY + b"[" * MANY],
    ids=["plain", "quoted", "escaped"],
)
def test_brackets_and_commas_within_texts_are_no_values(text: bytes) -> None:
    value = bodies.decode_json(b'{"data":{"a":"%b","b":"x"}}' % text)

    assert value["data"]["b"] == "x"
    assert value["data"]["a"] == json.loads(b'"%b"' % text)


@pytest.mark.parametrize(
    "body",
    [b"[" + b"{}," * OVER + b"1]", b'{"a":"[","b":[' + b'"",' * OVER + b'""]}', b"[" * (2 * OVER)],
    ids=["objects", "texts", "depth"],
)
def test_more_values_than_a_manifest_has_are_refused(body: bytes) -> None:
    with pytest.raises(TooMuch, match="more than 250000 values"):
        bodies.decode_json(body)
    with pytest.raises(TooMuch, match="more than 250000 values"):  # not read a second time, as YAML
        bodies.decode_yaml(body)


def test_a_text_that_never_ends_is_counted_in_linear_time() -> None:
    started_s = time.process_time()
    with pytest.raises(MalformedBody):
        bodies.decode_json(b'"' + rb"\"[,{" * (bodies.BODY_BYTES_MAX // 5))

    assert time.process_time() - started_s < 5  # quadratic: minutes


def test_no_more_than_a_hundred_duplicate_keys_are_reported() -> None:
    body = b'{"a":[%b]}' % b",".join([b'{"b":1,"b":2}'] * 5_000)

    found = bodies.duplicate_fields(body, bodies.decode_json(body))

    assert found == [f"a[{index}].b" for index in range(100)]


def test_duplicate_keys_are_found_below_objects_and_lists_without_any() -> None:
    body = b'{"a":{"b":[1,[{"c":{"d":1,"d":2},"c ":[]}]]},"e":1,"e":1}'

    assert bodies.duplicate_fields(body, bodies.decode_json(body)) == ["e", "a.b[1][0].c.d"]


async def test_duplicate_keys_of_a_long_body_are_looked_for_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    monkeypatch.setattr(
        bodies, "duplicate_fields", lambda body, value: threads.append(threading.current_thread())
    )

    for size in (10, bodies.READ_HERE_BYTES_MAX):
        await bodies.duplicate_fields_beside(b'{"a":"%b"}' % (b"x" * size), None)

    assert [thread is threading.main_thread() for thread in threads] == [True, False]


def test_warnings_fit_into_headers() -> None:
    short, long = ["a", "b", "a"], [f"{number}" + "x" * 10_000 for number in range(100)]

    assert calls.shortened(short) == ["a", "b"]
    assert calls.shortened(["y" * 4_096]) == ["y" * 4_096]
    assert calls.shortened(long) == [text[:256] for text in long[:16]]


def test_commas_in_a_block_of_yaml_are_no_values() -> None:
    rows = "\n".join("    a,b,c,d" for _ in range(100_000))

    value = bodies.decode_yaml(f"data:\n  table.csv: |\n{rows}\n".encode())

    assert value["data"]["table.csv"].count("a,b,c,d") == 100_000
