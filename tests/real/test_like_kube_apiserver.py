"""Our API server answers random requests about built-in kinds as kube-apiserver does: codes, causes, objects."""

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.real import binaries
from tests.real.requests import cases, compare
from tests.real.requests.sides import Answer, Side, Sides, ours

CASES = 250
"""`make test-requests` compares more."""


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    if why := binaries.why_missing(("etcd", "kube-apiserver")):
        pytest.skip(why)
    with Sides.started(tmp_path_factory.mktemp("requests")) as both:
        yield both


def test_requests_are_answered_as_kube_apiserver_answers_them(sides: Sides) -> None:
    for seed in range(CASES):
        assert compare.differences(sides, cases.case_of(seed)) == [], f"case {seed}"


def test_cases_are_of_all_kinds_and_their_requests_taken_and_refused() -> None:
    """Else nothing would be compared."""
    codes: Counter[int] = Counter()
    methods: Counter[str] = Counter()
    with ours() as url:
        side = Side(url)
        for seed in range(60):
            steps = cases.case_of(seed)
            methods.update(step["method"] for step in steps)
            codes.update(answer.code for answer in side.answers(steps, f"case{seed}"))

    assert methods.keys() == {"GET", "POST", "PUT", "PATCH", "DELETE"}
    assert min(codes[code] for code in (200, 201, 404, 409, 422)) > 5


def test_answers_that_differ_are_told() -> None:
    theirs = Answer(200, [], {"kind": "Pod", "metadata": {"uid": "a"}, "spec": {"a": 1}})
    other_uid = theirs._replace(body={**theirs.body, "spec": {"a": 2}})

    assert list(compare.between(theirs, theirs)) == []
    assert list(compare.between(theirs, other_uid)) == [".spec.a: 1 / 2"]
    assert next(compare.between(theirs, theirs._replace(code=404))).startswith("code: 200 / 404")
    assert list(compare.between(theirs, theirs._replace(warnings=["w"]))) == ["warnings: [] / ['w']"]
