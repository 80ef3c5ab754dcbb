"""What vendors' tools print, as values."""

import pytest

from koordinator.koordlet.device_daemon import vendors
from koordinator.koordlet.device_daemon.vendors import ToolError


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("24576 MiB", 24576 << 20),
        ("24576 MB", 24576 << 20),
        ("24576", 24576 << 20),
        ("32GB", 32 << 30),
        ("32 gib", 32 << 30),
        ("7 KB", 7 << 10),
        ("7KiB", 7 << 10),
        ("7 kBytes", 7 << 10),
        ("0 MB", 0),
    ],
)
def test_amounts_of_memory_are_bytes_whatever_their_unit(text: str, size_bytes: int) -> None:
    assert vendors.bytes_of("tool", "memory", text) == size_bytes
    assert vendors.values("tool", f"Memory : {text}\nmemory: 1 GB").size_bytes("memory") == size_bytes


@pytest.mark.parametrize("text", ["much", "5 bananas", "-1 MB", "1.5 GB"])
def test_what_is_no_amount_is_reported_with_its_tool_and_key(text: str) -> None:
    with pytest.raises(ToolError, match=r"^tool: memory: .* is no amount of memory"):
        vendors.bytes_of("tool", "memory", text)


@pytest.mark.parametrize("text", ["", "N/A", "-", "none"])
def test_a_tool_may_say_nothing(text: str) -> None:
    assert vendors.values("tool", f"Memory: {text}").size_bytes("memory") is None
    assert vendors.values("tool", "Other: 1").size_bytes("memory") is None
