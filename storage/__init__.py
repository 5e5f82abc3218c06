"""Floor 1: the system of record, its partitions, both legs, and embedders.

``Store`` (a file) and ``MemoryStore`` are the two backends; ``select(view, …)`` is the one read.
"""
