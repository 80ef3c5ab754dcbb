"""InterPodAffinity: pods next to, or away from, other pods."""
