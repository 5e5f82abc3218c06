"""Policies that decide whose model call runs next: pure objects, no clock and no I/O."""
