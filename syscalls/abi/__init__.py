"""The messages of the newer families of syscalls, a module each.

A module holds the Structs of its requests and replies (and records that stand only in these), and
four names that :mod:`isovist.syscalls.messages` takes up: ``Request``, ``AnyReply``, ``REPLY_OF``
and ``NAMES``.
"""
