"""DefaultPreemption: pods that matter more take the place of pods that matter less."""
