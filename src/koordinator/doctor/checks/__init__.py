"""The checks, one module per area: pure functions from a snapshot to findings."""
