"""Pages with figures: single files that need no network."""
