"""What the scheduler does between the API and its cycles: caches, events, waiting, binding, statuses."""
