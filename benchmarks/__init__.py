"""One module per claim, each with a `main()` that prints figures; never part of the tests."""
