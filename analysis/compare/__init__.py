"""Whether runs can be compared, and what changed between two sets of them. It neither draws nor writes."""
