"""What a plugin author sees: extension points, capabilities, statuses, events, the handle."""
