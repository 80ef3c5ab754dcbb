"""Volumes of pods: VolumeBinding, VolumeZone, VolumeRestrictions and NodeVolumeLimits."""
