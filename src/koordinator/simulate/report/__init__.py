"""The HTML report of a comparison: one file that explains itself and needs no network."""
