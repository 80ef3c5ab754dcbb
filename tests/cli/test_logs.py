"""Log lines: failures that somebody else can cause at will fill no disk."""

import asyncio
import logging
from collections.abc import Callable

import pytest
from aiohttp import web
from aiohttp.http_exceptions import BadStatusLine

from koordinator.cli import logs


class Lines:
    """What a handler with the filter of `set_up` would write."""

    def __init__(self) -> None:
        self.failures = logs.Failures()
        self.formatter = logs.FactsFormatter()

    def fail(self, raise_: Callable[[], None], at_s: float, logger: str = "server") -> str:
        """The text of one logged failure, empty when it is left out."""
        try:
            raise_()
        except Exception as error:
            found = (type(error), error, error.__traceback__)
            record = logging.LogRecord(logger, logging.ERROR, "f.py", 1, "from %s", ("me",), found)
        record.created = at_s
        return self.formatter.format(record) if self.failures.filter(record) else ""


def bad_request() -> None:
    raise BadStatusLine("GET\n/")


def bug() -> None:
    raise KeyError("x")


def other_bug() -> None:
    raise KeyError("y")


def test_a_malformed_request_is_one_line() -> None:
    text = Lines().fail(bad_request, 0.0)

    assert "from me: BadStatusLine:" in text
    assert "test_logs.py:" in text
    assert "\n" not in text


def test_the_same_failure_is_reported_once_in_a_while_with_a_count() -> None:
    lines = Lines()
    reported = [lines.fail(bug, at_s) for at_s in (0.0, 1.0, 2.0, 11.0, 12.0, 30.0)]

    assert [bool(text) for text in reported] == [True, False, False, True, False, True]
    assert "Traceback" in reported[0]  # a bug of ours: its place is needed once
    assert "Traceback" not in reported[3]
    assert "(2 more since)" in reported[3]
    assert "(1 more since)" in reported[5]


def test_failures_at_other_places_and_of_other_loggers_are_reported_on_their_own() -> None:
    lines = Lines()
    assert all(
        "Traceback" in lines.fail(raise_, 0.0, logger)
        for raise_, logger in ((bug, "a"), (other_bug, "a"), (bug, "b"))
    )


def test_lines_without_an_exception_pass() -> None:
    record = logging.LogRecord("a", logging.ERROR, "f.py", 1, "text", (), None)
    assert all(logs.Failures().filter(record) for _ in range(3))


async def test_a_flood_of_malformed_requests_is_a_few_lines(capfd: pytest.CaptureFixture[str]) -> None:
    logs.set_up(logging.ERROR)
    runner = web.AppRunner(web.Application())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    for _ in range(50):
        reader, writer = await asyncio.open_connection(*runner.addresses[0][:2])
        writer.write(b"GET / HTTP/9.9\r\n\r\n")
        await reader.read()
        writer.close()
    await runner.cleanup()

    assert capfd.readouterr().err.count("\n") == 1


def test_flags_set_the_level_and_those_without_effect_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        logs.set_up_by_flags({"v": 4, "vmodule": "", "logging_format": "text"}, {"--log-dir": "no files"})
        assert root.level == logging.DEBUG
    finally:
        root.handlers[:], root.level = handlers, level

    assert "flag has no effect flag='--log-dir' why='no files'" in capsys.readouterr().err
