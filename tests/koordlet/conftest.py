"""Machines that run many tests at once are slow now and then: no example of a property has a deadline."""

from hypothesis import settings

settings.register_profile("koordlet", deadline=None)
settings.load_profile("koordlet")
