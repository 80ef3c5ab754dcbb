"""`x-kubernetes-validations`: rules in CEL for parts of custom resources, compiled once per schema.

A rule that uses `oldSelf` asks about updates only. Ratcheting: what a write leaves as it was is not asked again.
Source: Kubernetes, "Validation rules"; texts are those of the API server.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from koordinator import cel
from koordinator.cel import checker, syntax
from koordinator.cel.overloads import CELType, optional_of
from koordinator.cel.syntax import Name, SyntaxNode
from koordinator.cel.values import NONE, CompileError, OptionalValue
from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors
from koordinator.local.schema.custom.cel_values import Adapt, adapter, type_of

Json = dict[str, Any]

FIELD = "x-kubernetes-validations"
BUDGET = 50_000
"""Rounds of loops that all rules of one object may take together: some tenths of a second."""
MESSAGE_MAX = 2048
_REASONS = ("FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired")
UNCHECKED = errors.invalid(
    "<nil>",
    None,
    "some validation rules were not checked because the object was invalid; correct the existing errors to complete "
    "validation",
)
"""Message beside other errors where there are rules: they see valid objects only."""
_MISSING = object()


# When the definition is written


def check(schema: Json, field: str, lost: str, *, is_root: bool) -> list[StatusCause]:
    """Return what the types say of the rules of one part of a schema; `lost` names the list above it whose items cannot
    be found again."""
    if not schema.get(FIELD):
        return []
    own = type_of(schema, is_root=is_root)
    if own is None:
        detail = "internal error: failed to retrieve type information for x-kubernetes-validations"
        return [
            StatusCause(reason="InternalError", message=f"Internal error: {detail}", field=f"{field}.{FIELD}")
        ]
    causes: list[StatusCause] = []
    for index, rule in enumerate(schema[FIELD]):
        causes += _check_types(rule, own, f"{field}.{FIELD}[{index}]", lost)
    return causes


def _check_types(rule: Json, own: CELType, where: str, lost: str) -> list[StatusCause]:
    text, message = rule["rule"], rule.get("messageExpression")
    shown = {
        "Rule": text,
        "Message": rule.get("message", ""),
        "MessageExpression": rule.get("messageExpression", ""),
        "Reason": rule.get("reason"),
        "FieldPath": rule.get("fieldPath", ""),
        "OptionalOldSelf": rule.get("optionalOldSelf"),
    }
    variables = _variables(own, rule)
    causes: list[StatusCause] = []
    uses_old = False
    try:
        if checker.type_of(text, variables).name != "bool":
            causes.append(errors.invalid(f"{where}.rule", shown, "cel expression must evaluate to a bool"))
        else:
            uses_old = _uses_old(text)
            causes += (
                _check_message(message, variables, f"{where}.messageExpression", shown) if message else []
            )
    except CompileError as error:
        causes.append(errors.invalid(f"{where}.rule", shown, f"compilation failed: {checker.marked(error)}"))
    if uses_old and lost:
        detail = f"oldSelf cannot be used on the uncorrelatable portion of the schema within {lost}"
        causes.append(errors.invalid(f"{where}.rule", text, detail))
    if not uses_old and rule.get("optionalOldSelf") is not None:
        detail = "may not be set if oldSelf is not used in rule"
        causes.append(errors.invalid(f"{where}.optionalOldSelf", rule["optionalOldSelf"], detail))
    return causes


def _check_message(text: str, variables: dict[str, CELType], where: str, shown: Json) -> list[StatusCause]:
    try:
        found = checker.type_of(text, variables)
    except CompileError as error:
        detail = f"messageExpression compilation failed: {checker.marked(error)}"
        return [errors.invalid(where, shown, detail)]
    if found.name == "string":
        return []
    return [errors.invalid(where, shown, "messageExpression must evaluate to a string")]


def check_words(rule: Json, schema: Json, where: str) -> Iterator[StatusCause]:
    """Check what a rule says beside its expressions, and that it says one."""
    text, message = (rule.get("rule") or "").strip(), rule.get("message") or ""
    if not text:
        yield errors.required(f"{where}.rule", "rule is not specified")
    elif message and not message.strip():
        yield errors.invalid(f"{where}.message", message, "must be non-empty if specified")
    elif _BREAK.search(message.strip()):
        yield errors.invalid(f"{where}.message", message, "must not contain line breaks")
    elif _BREAK.search(text) and not message.strip():
        detail = "message must be specified if rule contains line breaks"
        yield errors.required(f"{where}.message", detail)
    expression, reason, path = (
        rule.get("messageExpression") or "",
        rule.get("reason"),
        rule.get("fieldPath") or "",
    )
    if expression and not expression.strip():
        detail = "messageExpression must be non-empty if specified"
        yield errors.required(f"{where}.messageExpression", detail)
    if reason is not None and reason not in _REASONS:
        yield errors.not_supported(f"{where}.reason", reason, _REASONS)
    if path and not path.strip():
        yield errors.invalid(f"{where}.fieldPath", path, "must be non-empty if specified")
    if _BREAK.search(path):
        yield errors.invalid(f"{where}.fieldPath", path, "must not contain line breaks")
    if path and isinstance(field_at(schema, path), str):
        yield errors.invalid(f"{where}.fieldPath", path, "must be a valid path")


_BREAK = re.compile(r"[\n\r]")
_TOKEN = re.compile(r"'(?:[^'\\]|\\.)*'|[.\[\]]|[^.\[\]']+")


def field_at(schema: Json, path: str, *, takes_brackets: bool = True) -> Json | str:
    """Return the part of a schema at `.a.b['c']`, or why there is none."""
    tokens = _TOKEN.findall(path)
    at = 0
    while at < len(tokens):
        sign, at = tokens[at], at + 1
        if sign == "[" and not takes_brackets:
            return "array notation is not allowed"
        if sign not in (".", "["):
            return f"expected [ or . but got: {sign}"
        if at == len(tokens):
            return "unexpected end of JSON path"
        name, at = tokens[at], at + 1
        if sign == "[":
            if not (name.startswith("'") and name.endswith("'") and len(name) > 1):
                return f"expected single quoted string but got {name}"
            if at == len(tokens):
                return "unexpected end of JSON path"
            if tokens[at] != "]":
                return f"expected ] but got {tokens[at]}"
            name, at = name[1:-1], at + 1
        more = schema.get("additionalProperties")
        properties = schema.get("properties")
        below = properties.get(name) if properties else more
        if not isinstance(below, dict):
            return "does not refer to a valid field"
        schema = below
    return schema


def _variables(own: CELType, rule: Json) -> dict[str, CELType]:
    return {"self": own, "oldSelf": optional_of(own) if rule.get("optionalOldSelf") else own}


def _uses_old(text: str) -> bool:
    return _names_old(syntax.parse(text))


def _names_old(node: SyntaxNode) -> bool:
    if isinstance(node, Name):
        return node.name == "oldSelf"
    return any(map(_names_old, syntax.parts_of(node)))


# When objects are written


class _Rule(msgspec.Struct, frozen=True):
    shown: str
    """Words for the rule in errors: its message, or else its text."""
    program: cel.Program
    message: str
    message_program: cel.Program | None
    reason: str
    path: str
    uses_old: bool
    takes_none: bool
    """Whether the rule is asked about new values, too, with an empty `oldSelf`."""


class _Node(msgspec.Struct):
    """A part of the schema at or below which there are rules."""

    rules: list[_Rule]
    adapt: Adapt | None
    kind: str
    properties: dict[str, "_Node"]
    values: "_Node | None"
    items: "_Node | None"
    keys: list[str] | None
    """Keys of a list whose items can be found again in its older state."""


Validate = Callable[[Any, Any, str], list[StatusCause]]
"""Function that returns what the rules find wrong with a value at a path, given its older state if there is one."""


def compile_rules(schema: Json, *, is_root: bool = True) -> Validate | None:
    """None for a schema without rules (assumed to have passed `check`; what cannot be compiled is left out)."""
    root = _compiled(schema, is_root=is_root)
    if root is None:
        return None
    tree = root

    def validate(obj: Any, old: Any, path: str) -> list[StatusCause]:
        run = _Run()
        before = _MISSING if old is None else old
        run.walk(tree, obj, _Older(before, before, None, is_root=True), path)
        return run.causes

    return validate


def _compiled(schema: Json, *, is_root: bool = False) -> _Node | None:
    more, items = schema.get("additionalProperties"), schema.get("items")
    properties = {
        name: node
        for name, inner in (schema.get("properties") or {}).items()
        if (node := _compiled(inner)) is not None
    }
    values = _compiled(more) if isinstance(more, dict) else None
    below = _compiled(items) if isinstance(items, dict) else None
    rules = [made for rule in schema.get(FIELD) or () if (made := _rule(rule)) is not None]
    if not (rules or properties or values or below):
        return None
    is_keyed = schema.get("x-kubernetes-list-type") == "map"
    return _Node(
        rules=rules,
        adapt=adapter(schema) if rules else None,
        kind=schema.get("type", ""),
        properties=properties,
        values=values,
        items=below,
        keys=schema.get("x-kubernetes-list-map-keys") if is_keyed else None,
    )


def _rule(rule: Json) -> _Rule | None:
    text, message = rule.get("rule", ""), rule.get("messageExpression")
    names = ("self", "oldSelf")
    try:
        return _Rule(
            program=cel.compile_expression(text, names),
            shown=(rule.get("message") or text).strip(),
            message=(rule.get("message") or "").strip() or f"failed rule: {text.strip()}",
            message_program=cel.compile_expression(message, names) if message else None,
            reason=rule.get("reason") or "FieldValueInvalid",
            path=rule.get("fieldPath") or "",
            uses_old=_uses_old(text),
            takes_none=bool(rule.get("optionalOldSelf")),
        )
    except CompileError:
        return None  # stored before rules were evaluated; every write of the definition says what is wrong


class _Older(NamedTuple):
    """The older state of a part: `for_rules` is the value of `oldSelf`, `value` what ratcheting compares with (or
    `_MISSING`); `nearest` is the nearest part above it that has an older state, with that."""

    for_rules: Any
    value: Any
    nearest: tuple[Any, Any] | None
    is_root: bool = False

    def below(self, holder: Any, for_rules: Any, value: Any) -> "_Older":
        """Return the same for a part of `holder`."""
        has_none = self.is_root or self.value is _MISSING
        return _Older(for_rules, value, self.nearest if has_none else (holder, self.value))

    def is_same(self, value: Any) -> bool:
        """Return whether the update leaves the part as it was; a whole object never is: its metadata differs."""
        if self.is_root:
            return False
        if self.value is not _MISSING:
            return bool(value == self.value)
        return self.nearest is not None and bool(self.nearest[0] == self.nearest[1])


class _Run:
    """One object on its way through the rules."""

    def __init__(self) -> None:
        self.causes: list[StatusCause] = []
        self._budget = cel.Budget(BUDGET)
        self._is_over = False

    def walk(self, node: _Node, value: Any, old: _Older, path: str) -> None:
        """Check the rules of a part and of all below it."""
        if value is None or self._is_over:
            return
        if node.rules:
            self._ask(node, value, old, path)
        if isinstance(value, dict):
            self._walk_object(node, value, old, path)
        elif isinstance(value, list) and node.items is not None:
            known, seen = _by_key(old.for_rules, node.keys), _by_key(old.value, node.keys)
            for index, item in enumerate(value):
                key = _key_of(item, node.keys or [])
                before = old.below(value, known.get(key, _MISSING), seen.get(key, _MISSING))
                self.walk(node.items, item, before, f"{path}[{index}]")

    def _walk_object(self, node: _Node, value: Json, old: _Older, path: str) -> None:
        was = old.for_rules if isinstance(old.for_rules, dict) else {}
        seen = old.value if isinstance(old.value, dict) else {}
        for name, below in node.properties.items():
            if name in value:
                before = old.below(value, was.get(name, _MISSING), seen.get(name, _MISSING))
                self.walk(below, value[name], before, f"{path}.{name}" if path else name)
        if node.values is not None:
            for name, item in value.items():
                before = old.below(value, was.get(name, _MISSING), seen.get(name, _MISSING))
                self.walk(node.values, item, before, f"{path}[{name}]")

    def _ask(self, node: _Node, value: Any, old: _Older, path: str) -> None:
        has_old = old.for_rules is not _MISSING and old.for_rules is not None
        scope: Json = {}
        for rule in node.rules:
            if rule.uses_old and not rule.takes_none and not has_old:
                continue
            try:
                if not scope:
                    scope = _scope(node, value, old.for_rules, has_old=has_old)
                asked = {**scope, "oldSelf": _optional(scope, has_old)} if rule.takes_none else scope
                if rule.program(asked, self._budget) is True:
                    continue
                if rule.uses_old or not old.is_same(value):
                    self._failed(rule, node, value, path, self._message(rule, asked))
            except cel.OutOfBudget:
                self._is_over = True
                detail = "validation failed due to running out of cost budget, no further validation rules will be run"
                self.causes.append(errors.invalid(path or "<nil>", node.kind, detail))
                return
            except cel.EvaluationError as error:
                self.causes.append(errors.invalid(path or "<nil>", node.kind, _error_text(rule, error)))

    def _message(self, rule: _Rule, scope: Json) -> str:
        """Return the rule's message; what the expression for it cannot say in one line, the plain one does."""
        if rule.message_program is None:
            return rule.message
        try:
            said = rule.message_program(scope, self._budget)
        except cel.OutOfBudget:
            raise
        except cel.EvaluationError:
            return rule.message
        text = said.strip() if isinstance(said, str) else ""
        return text if text and "\n" not in text and len(text) <= MESSAGE_MAX else rule.message

    def _failed(self, rule: _Rule, node: _Node, value: Any, path: str, message: str) -> None:
        field = (path + rule.path).lstrip(".") or "<nil>"
        shown = "" if node.kind in ("object", "array") else f": {errors.shown(value)}"
        match rule.reason:
            case "FieldValueRequired":
                text = f"Required value: {message}"
            case "FieldValueForbidden":
                text = f"Forbidden: {message}"
            case "FieldValueDuplicate":
                text = f"Duplicate value{shown}"
            case _:
                text = f"Invalid value{shown}: {message}"
        self.causes.append(StatusCause(reason=rule.reason, message=text, field=field))


def _error_text(rule: _Rule, error: cel.EvaluationError) -> str:
    if error.reason.startswith("no such overload"):
        return (
            f"'{error}': call arguments did not match a supported operator, function or macro signature for rule: "
            f"{rule.shown}"
        )
    return f"{error} evaluating rule: {rule.shown}"


def _scope(node: _Node, value: Any, old: Any, *, has_old: bool) -> Json:
    adapt = node.adapt
    scope = {"self": value if adapt is None else adapt(value)}
    if has_old:
        scope["oldSelf"] = old if adapt is None else adapt(old)
    return scope


def _optional(scope: Json, has_old: bool) -> OptionalValue:
    return OptionalValue(True, scope["oldSelf"]) if has_old else NONE


def _by_key(old: Any, keys: list[str] | None) -> dict[Any, Any]:
    if not keys or not isinstance(old, list):
        return {}
    return {_key_of(item, keys): item for item in old}


def _key_of(item: Any, keys: list[str]) -> tuple[Any, ...]:
    return tuple(item.get(key) for key in keys) if isinstance(item, dict) else ()
