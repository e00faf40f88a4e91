"""The Redis backend of oqron: both planes on Redis or Valkey."""
