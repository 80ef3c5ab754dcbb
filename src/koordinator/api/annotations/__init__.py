"""JSON payloads of annotations, one module per subject; each key is an `Annotation` with its payload type.

from koordinator.api.annotations import device
allocated = device.DEVICE_ALLOCATED.read(pod.metadata.annotations, pod.key)
"""
