"""One module per group of areas, found by the runner (see `tests.vectors`)."""
