"""Days of pods that come and go under virtual time, and whether the scheduler still knows what is there."""
