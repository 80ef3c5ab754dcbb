"""Answer over HTTP for the scheduler."""
