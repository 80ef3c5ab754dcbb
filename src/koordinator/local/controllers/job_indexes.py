"""Sets of completion indexes as text, such as `0,2-4`, in the status and the success policy of Jobs. Pure."""

from collections.abc import Iterable

from koordinator.api.errors import ProtocolError


def parse(text: str, field: str) -> set[int]:
    """Raises: ProtocolError when the text is no list of indexes and ranges."""
    indexes: set[int] = set()
    for part in filter(None, text.split(",")):
        first, dash, last = part.partition("-")
        if not _is_number(first) or (dash and not _is_number(last)):
            raise ProtocolError("", field, f"{part!r} is neither an index nor a range")
        indexes.update(range(int(first), int(last if dash else first) + 1))
    return indexes


def to_text(indexes: Iterable[int]) -> str:
    """Ascending, three and more neighbours as a range and two apart, as upstream writes them."""
    parts: list[str] = []
    run: list[int] = []
    for index in [*sorted(indexes), None]:
        if run and (index is None or index != run[-1] + 1):
            parts.append(
                str(run[0]) if len(run) == 1 else f"{run[0]}{',' if len(run) == 2 else '-'}{run[-1]}"
            )
            run = []
        if index is not None:
            run.append(index)
    return ",".join(parts)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()
