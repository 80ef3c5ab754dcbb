"""Place pods: profiles, evaluations that pods share, cycles, batches."""
