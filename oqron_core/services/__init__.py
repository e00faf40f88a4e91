"""What people call: thin over the protocol and the planes."""
