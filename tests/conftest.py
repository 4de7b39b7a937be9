"""Settings for all tests."""

from hypothesis import settings

# A slow machine is no failure: deadlines of single examples are left to the tests that claim one.
settings.register_profile("project", deadline=None)
settings.load_profile("project")
