"""Pods that wait: in line, in backoff, asleep until an event."""
