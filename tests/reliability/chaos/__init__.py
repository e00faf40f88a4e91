"""
Chaos: real servers and processes that die while thousands of jobs go through.

`run.py` is the entry. It starts servers, puts a proxy before each, starts workers
and a producer as processes of their own, and lets a nemesis loose on all of them.
Everybody notes what happened in files outside the system; at the end these are
compared with what the store says.
"""
