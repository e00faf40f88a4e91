"""Storage for job systems, in two planes."""
