"""The migration controller's decisions: admission, arbitration, the job's steps, limits."""
