"""What places a pod: profiles, evaluations that pods share, cycles, batches."""
