"""What keeps a process in its place: one module an instrument of Linux, none needs root.

``policy`` says what a process may have, ``apply`` takes away all else (``landlock``: files, TCP,
signals; ``seccomp``: syscalls; ``limits``: resources and capabilities), ``workspace`` is an
agent's own folder, ``cgroups`` bounds all agents together, ``launch`` confines any program that
is executed, ``report`` tells what this system can enforce. See ``docs/confinement.md``.
"""
