"""Tools in the shell: servers as processes, and what they answer.

config          servers as the operator's settings name them
mounts          carries out the kernel's instructions: starts servers, calls tools
outputs         answers that are too long for a reply
protocol        what the kernel and the host of a server say to each other
host            the process that hosts one server, and is the only one to import the MCP SDK
mcp             a host of an MCP server, over pipes or HTTP
native          a host of Python functions, each call a process of its own
schema          Python functions as tools
leash           ends an MCP server with its host
"""
