"""Who borrows from whom: conserved, and by the size of each loan."""

from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.scheduler.explain.lending import Loan, Stand, loans
from koordinator.scheduler.plugins.elastic_quota.runtime import Claim, fair_shares


def test_what_one_quota_leaves_is_lent_to_the_one_that_is_above_its_minimum() -> None:
    found = loans(
        140,
        [
            Stand(name="ads", min=100, runtime=120, request=124),
            Stand(name="search", min=40, runtime=20, request=20),
        ],
    )

    assert found == {
        "ads": Loan(borrowed=20, lenders={"search": 20}),
        "search": Loan(lent=20),
    }


def test_what_no_minimum_covers_is_borrowed_first() -> None:
    found = loans(
        150,
        [
            Stand(name="ads", min=100, runtime=120, request=120),
            Stand(name="search", min=40, runtime=20, request=20),
        ],
    )

    assert found["ads"] == Loan(borrowed=20, lenders={"search": 10})
    assert found["search"] == Loan(lent=10)


def test_a_minimum_that_is_scaled_down_is_not_lent() -> None:
    stands = [Stand(name=name, min=100, runtime=50, request=200) for name in ("a", "b")]

    assert loans(100, stands) == {}


def test_what_is_left_and_nobody_borrows_is_idle() -> None:
    assert loans(100, [Stand(name="a", min=50, runtime=10, request=10)]) == {}


claims = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 120), st.integers(0, 9), st.booleans()),
    min_size=1,
    max_size=6,
)


@settings(max_examples=50, deadline=None)
@given(claims, st.integers(0, 300), st.booleans())
def test_all_that_is_lent_is_borrowed_and_nobody_lends_what_it_uses(
    drawn: list[tuple[int, int, int, bool]], total: int, is_known: bool
) -> None:
    asked = [
        Claim(name=f"q{number}", min=low, request=request, weight=weight, lends=lends)
        for number, (low, request, weight, lends) in enumerate(drawn)
    ]
    runtime = fair_shares(total, asked)
    stands = [
        Stand(name=each.name, min=each.min, runtime=runtime[each.name], request=each.request)
        for each in asked
    ]

    found = loans(total if is_known else None, stands)

    by_name = {each.name: each for each in stands}
    assert sum(each.lent for each in found.values()) == sum(
        sum(each.lenders.values()) for each in found.values()
    )
    for name, loan in found.items():
        assert loan.borrowed == by_name[name].borrowed
        assert sum(loan.lenders.values()) <= loan.borrowed
        assert loan.lent <= by_name[name].left
