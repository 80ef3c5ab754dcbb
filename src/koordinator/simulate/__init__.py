"""Simulate what co-location would bring: scenarios on virtual time and their reports."""
