"""Whoever catches any exception is named here, with the reason: elsewhere, mistakes must not go unheard."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import koordinator

ROOT = Path(koordinator.__file__).parent

_BROAD = frozenset(("Exception", "BaseException"))

SURVIVES = {
    "cluster/supervise.py:Guard.call": "the supervisor",
    "cluster/supervise.py:Guard.call_async": "the supervisor",
    "cluster/supervise.py:Guard.answer": "the supervisor",
    "cluster/supervise.py:supervise": "the supervisor",
    "cluster/supervise.py:attempt": "code of strangers, run once; the caller reports what it raised",
    "cluster/informer.py:Informer._relist.transformed": "in the middle of a list: told to the guard when it has come",
    "cluster/informer.py:Informer._keep": "as Guard.call, written out: a burst of changes spends its time here",
    "local/admission/client.py:Caller._call_handler": "a handler in this process fails as one across HTTP would",
    "local/apiserver/server.py:ApiServer._answer": "becomes the answer 500, logged with traceback",
    "local/persistence.py:SqliteJournal._commit_all": "told to all whose writes were not saved; tried again",
    "local/persistence.py:SqliteJournal._write": "written one by one, to find what the database does not take",
    "local/persistence.py:_execute_each": "one object that cannot be saved must not keep the others from it",
    "manager/webhooks/review.py:review": "becomes the answer 500, logged with traceback",
    "runtime_proxy/relay.py:Relay._done": "nobody waits for the task of a call: logged, and its connection closed",
    "scheduler/loop/binding.py:Binder._carry_out": "costs its pod the attempt before the guard hears of it",
    "scheduler/scheduler.py:Scheduler._schedule": "costs its pod the attempt before the guard hears of it",
    "scheduler/queue/unschedulable_pods.py:_obstacle": "as Guard.answer, but the log names the method of the plugin",
}
"""Who goes on after any exception, and why it may."""

CLEANS_UP = {
    "cluster/exchange.py:ConnectionPool.exchange": "the connection may still get an answer: nobody may use it again",
    "cluster/exchange.py:ConnectionPool._connected": "a turn that comes in vain goes to the next one",
    "local/apiserver/tls.py:write_kubeconfig": "no temporary file stays",
    "local/apiserver/short_requests.py:_Connection._serve": "the client must not wait for an answer",
    "local/persistence.py:SqliteJournal._transaction": "rolled back",
    "local/processes/node_api.py:ExecCommand.__init__": "descriptors are closed",
    "local/processes/launch.py:start": "no process stays at the gate",
    "local/registry/__init__.py:on_disk": "the file is given back",
    "manager/noderesource/writer.py:NodeWriter._carry_out": "counted and queued again",
    "scheduler/engine/batch.py:Batch.run": "what was reserved is given back",
    "scheduler/engine/steps.py:CycleSteps._assume": "what was reserved is given back",
    "scheduler/engine/cycle.py:Cycle._book": "what was reserved is given back",
    "yarn/connection.py:Connection._open": "the connection is closed: nobody has it yet",
}
"""Who puts things in order and raises again."""

ADVICE = """catches any exception. Let a loop run under koordinator.cluster.supervise (`supervise`, `Guard.call`,
`Guard.answer`, `attempt`), or name the exceptions that can be raised. Where neither will do, list it in this test."""


def broad_names(caught: ast.expr | None) -> bool:
    """Whether an `except` (or the arguments of `suppress`) takes all exceptions; without a type it does."""
    if caught is None:
        return True
    if isinstance(caught, ast.Tuple):
        return any(map(broad_names, caught.elts))
    return isinstance(caught, ast.Name) and caught.id in _BROAD


def broad_excepts(node: ast.AST, inside: str = "") -> Iterator[tuple[str, bool]]:
    """Where below `node` any exception is caught, and whether it is raised again in the end."""
    for child in ast.iter_child_nodes(node):
        name = inside
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{inside}.{child.name}".lstrip(".")
        elif isinstance(child, ast.ExceptHandler) and broad_names(child.type):
            last = child.body[-1]
            yield inside, isinstance(last, ast.Raise) and last.exc is None
        elif isinstance(child, ast.Call) and ast.unparse(child.func) == "contextlib.suppress":
            yield from ((inside, False) for each in child.args if broad_names(each))
        yield from broad_excepts(child, name)


@functools.cache
def found() -> dict[str, bool]:
    """All of src; of several in one function the one that does not raise again counts."""
    places: dict[str, bool] = {}
    for path in sorted(ROOT.rglob("*.py")):
        for name, raises in broad_excepts(ast.parse(path.read_text())):
            place = f"{path.relative_to(ROOT)}:{name}"
            places[place] = raises and places.get(place, True)
    return places


def test_whoever_goes_on_after_any_exception_is_listed() -> None:
    surviving = {place for place, raises in found().items() if not raises}

    assert not surviving - SURVIVES.keys(), f"{sorted(surviving - SURVIVES.keys())} {ADVICE}"
    assert not SURVIVES.keys() - surviving, "these no longer do: take them from the list"


def test_whoever_cleans_up_after_any_exception_raises_it_again() -> None:
    cleaning = {place for place, raises in found().items() if raises}

    assert not cleaning - CLEANS_UP.keys(), f"{sorted(cleaning - CLEANS_UP.keys())} {ADVICE}"
    assert not CLEANS_UP.keys() - cleaning, "these no longer do: take them from the list"


def test_all_ways_to_catch_any_exception_are_found() -> None:
    source = """
def bare():
    try: pass
    except: pass
class A:
    def several(self):
        try: pass
        except (KeyError, Exception) as error: print(error)
async def cleans():
    try: pass
    except BaseException:
        close()
        raise
def replaces():
    try: pass
    except Exception as error: raise KeyError from error
def suppresses():
    with contextlib.suppress(Exception): pass
def narrow():
    with contextlib.suppress(KeyError): pass
    try: pass
    except (OSError, ValueError): pass
"""
    assert list(broad_excepts(ast.parse(source))) == [
        ("bare", False),
        ("A.several", False),
        ("cleans", True),
        ("replaces", False),
        ("suppresses", False),
    ]
