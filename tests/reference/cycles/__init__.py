"""Whole scheduling cycles of koord-scheduler's profile beside the original's, on random clusters."""
