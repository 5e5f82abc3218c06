"""The ABI of Isovist: messages, codec and framing, error numbers, records, and two clients.

Floor 0: everything else may import it, and it imports nothing of the house. Importing this
package loads nothing; take what you need from its modules:

- :mod:`~isovist.syscalls.client`, a blocking client for plain scripts and threads;
- :mod:`~isovist.syscalls.aio`, the same calls for trio;
- :mod:`~isovist.syscalls.messages`, one Struct a syscall and one a kind of reply
  (``docs/syscalls.md`` is made from them);
- :mod:`~isovist.syscalls.errors`, why a syscall failed.
"""
