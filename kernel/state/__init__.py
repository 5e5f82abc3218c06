"""The pure kernel: events in, instructions out, one mutating door.

``core.State.handle`` is the door. Nothing here knows a clock, a file, a socket, a thread or an
event loop, so the same code runs under the trio shell and under the seeded simulator.
"""
