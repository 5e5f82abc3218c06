"""``agent``: what agents ask for, what they are granted, and whom nobody should believe."""

from __future__ import annotations

from cyclopts import App, Parameter

from isovist.kernel.cli.common import Common

Flag = Parameter(negative="", show_default=False)
DEFAULTS = Common()

agent = App(name="agent", help="What agents ask for in their manifests, and what they are granted.")
COMMANDS = frozenset({"agent", "agent inspect", "agent approve", "agent ls", "agent revoke"})


@agent.command(name="inspect")
def inspect(path: str, /, *, common: Common = DEFAULTS) -> int:
    """Show what an agent asks for, in plain words, and what of it is granted already.

    Parameters
    ----------
    path
        The agent's folder, or its script, with a manifest.toml beside it.
    """
    from isovist.kernel.cli import manifests

    return manifests.inspect(common, path)


@agent.command(name="approve")
def approve(path: str, /, *, common: Common = DEFAULTS) -> int:
    """Grant an agent all that its manifest asks for, and let it run under that manifest.

    Parameters
    ----------
    path
        The agent's folder, or its script, with a manifest.toml beside it.
    """
    from isovist.kernel.cli import manifests

    return manifests.approve(common, path)


@agent.command(name="ls")
def ls(*, common: Common = DEFAULTS) -> int:
    """List the agents that are approved or hold grants."""
    from isovist.kernel.cli import manifests

    return manifests.ls(common)


@agent.command(name="revoke")
def revoke(name: str, /, *, common: Common = DEFAULTS) -> int:
    """Take back an agent's approval and all that its manifest was granted, also from running ones.

    Parameters
    ----------
    name
        The agent's name, as agent ls shows it.
    """
    from isovist.kernel.cli import manifests

    return manifests.revoke(common, name)
