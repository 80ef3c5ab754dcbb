"""Formats by name: `format.dns1123Label().validate(text)`. Source: the libraries of k8s.io/apiserver/pkg/cel."""

import re
from collections.abc import Callable
from typing import Any

import msgspec

from koordinator.cel.values import NONE, OptionalValue, no_overload

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"


class NamedFormat(msgspec.Struct, frozen=True):
    """A format by name, and what a text must be for it."""

    name: str
    pattern: str
    length_max: int

    def validate(self, text: Any) -> OptionalValue:
        """Return what is wrong with a text; none when it is valid."""
        if not isinstance(text, str):
            raise no_overload("validate", text)
        if self.name in _TEXTS:
            is_good = len(text) <= self.length_max and re.fullmatch(self.pattern, text, re.ASCII)
            return NONE if is_good else OptionalValue(True, [_TEXTS[self.name]])
        wrong = []
        if len(text) > self.length_max:
            wrong.append(f"must be no more than {self.length_max} characters")
        if re.fullmatch(self.pattern, text, re.ASCII) is None:
            wrong.append(f"must be a valid {self.name}")
        return OptionalValue(True, wrong) if wrong else NONE


_FORMATS = {
    "dns1123Label": (_LABEL, 63),
    "dns1123Subdomain": (rf"{_LABEL}(\.{_LABEL})*", 253),
    "dns1035Label": (r"[a-z]([-a-z0-9]*[a-z0-9])?", 63),
    "dns1123LabelPrefix": (rf"{_LABEL}-?", 63),
    "dns1123SubdomainPrefix": (rf"{_LABEL}(\.{_LABEL})*[-.]?", 253),
    "dns1035LabelPrefix": (r"[a-z]([-a-z0-9]*[a-z0-9])?-?", 63),
    "qualifiedName": (rf"({_LABEL}(\.{_LABEL})*/)?{_QUALIFIED}", 317),
    "labelValue": (rf"({_QUALIFIED})?", 63),
    "uuid": (r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", 36),
    "date": (r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])", 10),
    "datetime": (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", 64),
    "byte": (r"([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?", 3 << 20),
    "uri": (r"[A-Za-z][A-Za-z0-9+.-]*:\S*|/\S*", 3 << 20),
}
_TEXTS = {
    "uuid": "does not match the UUID format",
    "byte": "invalid base64",
    "date": "invalid date",
    "datetime": "invalid datetime",
}
"""Texts for those formats of which one thing is said only."""
FORMAT_NAMES = tuple(_FORMATS)


def named_format(name: Any) -> OptionalValue:
    """Return the format of a name, none where there is no such format."""
    known = _FORMATS.get(name) if isinstance(name, str) else None
    return NONE if known is None else OptionalValue(True, NamedFormat(name, *known))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "format.named": named_format,
    **{f"format.{name}": lambda name=name: NamedFormat(name, *_FORMATS[name]) for name in _FORMATS},
}
METHODS = {"kubernetes.NamedFormat": {"validate": NamedFormat.validate}}
"""By type of the receiver, by name."""
