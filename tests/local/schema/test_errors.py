"""What is told of an invalid object."""

from koordinator.local.schema import errors


def causes(count: int) -> list[errors.StatusCause]:
    return [errors.required(f"spec.items[{number}]") for number in range(count)]


def test_all_faults_are_told_of_an_object_that_has_some() -> None:
    error = errors.invalid_kind("apps", "Deployment", "web", causes(2))

    assert error.message == (
        'Deployment.apps "web" is invalid: [spec.items[0]: Required value, spec.items[1]: Required value]'
    )


def test_of_an_object_that_has_very_many_faults_the_first_are_reported_and_how_many_more() -> None:
    error = errors.invalid_kind("apps", "Deployment", "web", causes(100_000))

    assert error.details is not None
    assert error.details.causes == causes(1_000)
    assert error.message.endswith("spec.items[999]: Required value, and 99000 more]")
    assert len(error.message) < 50_000
