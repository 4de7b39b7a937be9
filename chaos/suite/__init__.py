"""The chaos suite: every kind of fault, struck into a real run of one recipe, as tests for pytest."""
