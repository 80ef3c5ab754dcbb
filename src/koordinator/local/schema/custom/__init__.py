"""Custom resources: checks of their definitions, pruning, defaulting and validation by structural schemas."""
