"""What the scheduler tells about itself while it runs: metrics of cycles, debug output, diagnoses."""
