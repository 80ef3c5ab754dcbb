"""Watch the scheduler while it runs: metrics of cycles, debug output, diagnoses."""
