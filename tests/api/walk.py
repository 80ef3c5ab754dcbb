"""Walking over the structs that a view consists of."""

from collections.abc import Iterator

import msgspec


def structs(view: type) -> Iterator[type[msgspec.Struct]]:
    """The view and all structs below it, each once."""
    seen: set[type] = set()

    def visit(info: msgspec.inspect.Type) -> Iterator[type[msgspec.Struct]]:
        match info:
            case msgspec.inspect.Metadata():
                yield from visit(info.type)
            case msgspec.inspect.ListType():
                yield from visit(info.item_type)
            case msgspec.inspect.DictType():
                yield from visit(info.value_type)
            case msgspec.inspect.UnionType():
                for member in info.types:
                    yield from visit(member)
            case msgspec.inspect.StructType():
                if info.cls not in seen:
                    seen.add(info.cls)
                    yield info.cls
                    for field in info.fields:
                        yield from visit(field.type)

    yield from visit(msgspec.inspect.type_info(view))
