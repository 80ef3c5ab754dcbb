"""`make quick`: lint, and the tests that matter for what changed, within a minute."""
