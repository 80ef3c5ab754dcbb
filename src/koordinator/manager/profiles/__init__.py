"""Colocation profiles: which pods they match, how they change them, and the loop that brings them to waiting pods."""
