"""Work between the API and the cycles: caches, events, waiting, binding, statuses."""
