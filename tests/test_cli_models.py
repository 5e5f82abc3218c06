"""``model list``: local models and endpoints, who rests, and who stands in."""

from __future__ import annotations

from pathlib import Path

from cli_helpers import Shell
from endpoint_helpers import completions, refuses
from kernel_helpers import short_folder

EXAMPLE = Path(__file__).parent.parent / "examples" / "first_agent.py"


def configure(shell: Shell, url: str) -> None:
    file = shell.folder / "config" / "isovist" / "config.toml"
    file.write_text(
        'embedder = "hash"\nmodel = "far"\n'
        f'[endpoints.far]\nurl = "{url}"\nmodel = "m"\ntries = 1\ncontext = 4096\n'
        '[fallbacks]\nfar = ["scripted"]\n'
    )


def test_an_endpoint_that_rests_is_listed_with_who_stands_in() -> None:
    with completions() as server, short_folder() as folder:
        server.then = refuses(503, Retry_After="900")
        shell = Shell(Path(folder))
        configure(shell, server.url)
        models = {m["name"]: m for m in shell("model", "ls", "--json").json}
        assert models.keys() == {"scripted", "far"}
        far = models["far"]
        assert (far["driver"], far["context"], far["state"]) == ("openai", 4096, "")
        assert (far["rest_ms"], far["fallbacks"]) == (0, ["scripted"])
        assert far["endpoint"]["url"] == server.url
        assert server.url in shell("model", "ls").out
        shell("up", "-d", "--json")
        try:
            shell("run", str(EXAMPLE), "--user", "ana", stdin="Which locker is mine?\n")
            far = next(m for m in shell("model", "ls", "--json").json if m["name"] == "far")
            assert 0 < far["rest_ms"] <= 900_000
            assert (far["state"], far["fallbacks"], far["default"]) == ("up", ["scripted"], True)
            assert "503" in far["error"]
            said = shell("model", "ls").out
            assert "up, rests " in said
            assert "FALLBACKS" in said
        finally:
            shell("down")
