"""The in-process backend of oqron: both planes in memory."""
