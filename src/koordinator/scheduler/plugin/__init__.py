"""The interface for plugin authors: extension points, capabilities, statuses, events, the handle."""
