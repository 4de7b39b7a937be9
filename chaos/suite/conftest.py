"""Everything is in the plugin, whose options pytest has to know before it looks for tests."""

pytest_plugins = ["chaos.suite.plugin"]
