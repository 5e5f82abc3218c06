"""Endpoints through the whole kernel: settings, counting, routing, and a key that stays put."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from endpoint_helpers import completions, refuses, says
from kernel_helpers import client, config, running, short_folder

from isovist.kernel.config import load
from isovist.kernel.endpoints import Endpoint, check
from isovist.kernel.kernel import Kernel
from isovist.kernel.models import ModelSpec, available
from isovist.kernel.tokens import BoundCounter, EstimateCounter, counter_for
from isovist.syscalls.errors import CallerError, Errno, IsovistError
from isovist.syscalls.records import Message

KEY, VARIABLE = "sk-quite-a-secret-0123456789", "ISOVIST_TEST_KEY"


def specs(state: Path, url: str, **fields: Any) -> list[ModelSpec]:
    endpoint = Endpoint(url=url, model="m", key=VARIABLE, tries=1, **fields)
    return available(config(state, endpoints={"far": endpoint}))


async def test_an_endpoint_answers_and_a_fallback_in_its_place(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    user = (Message("user", "!script text=near"),)
    with completions(says("far")) as server, short_folder() as folder:
        server.then = refuses(503, KEY.encode(), Retry_After="900")
        state = Path(folder)
        async with (
            running(
                state,
                models=specs(state, server.url),
                model="far",
                fallbacks={"far": ("scripted",)},
                defaults={"two": "scripted"},
            ) as kernel,
            client(kernel, "one", operator=True, user="ana") as one,
            client(kernel, "two", operator=True, user="ana") as two,
        ):
            reply = await one.chat(user)
            assert (reply.text, reply.model, reply.output_tokens) == ("far", "far", 1)
            assert reply.counter == BoundCounter.name
            reply = await one.chat(user)
            assert (reply.text, reply.model) == ("near", "scripted")
            assert len(server.seen) == 2
            far = next(one for one in (await one.models()).models if one.name == "far")
            assert 800_000 < far.rest_ms <= 900_000
            assert (far.state, far.driver) == ("up", "openai")
            assert "503" in far.error
            reply = await one.chat(user)
            assert reply.model == "scripted"
            assert len(server.seen) == 2, "it was asked in its rest"
            assert (await two.chat(user)).model == "scripted"
        words = [capfd.readouterr().err, *(p.read_bytes().decode("latin-1") for p in files(state))]
    assert server.keys == [f"Bearer {KEY}"] * 2
    assert not [text for text in words if "quite-a-secret" in text]


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_a_refused_key_and_a_missing_one_name_the_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    user = (Message("user", "when?"),)
    with completions(refuses(401, KEY.encode())) as server:
        for errno in (Errno.EACCES, Errno.EIO):
            with short_folder() as folder, trio.fail_after(60):
                models = specs(Path(folder), server.url)
                async with (
                    running(Path(folder), models=models) as kernel,
                    client(kernel, "one", operator=True, user="ana") as one,
                ):
                    with pytest.raises(IsovistError) as e:
                        await one.chat(user, model="far")
            assert e.value.errno is errno
            assert VARIABLE in e.value.message
            assert "quite-a-secret" not in repr(e.value)
            monkeypatch.delenv(VARIABLE, raising=False)


# -- configuration


def write(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    file = folder / "isovist" / "config.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return folder


WHOLE = """
model = "far"
[endpoints.far]
url = "https://example.org/v1"
model = "large"
key = "THE_KEY"
context = 128000
slots = 3
omit = ["temperature"]
length = "max_completion_tokens"
tokenizer = "estimate"
[defaults]
planner = "scripted"
[fallbacks]
far = ["scripted"]
"""


def test_an_endpoint_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, monkeypatch, WHOLE)
    read = load("test", tmp_path / "state")
    spec = next(spec for spec in available(read) if spec.name == "far")
    assert (spec.driver, spec.context, spec.at_a_time) == ("openai", 128000, 3)
    assert spec.endpoint is not None
    assert spec.endpoint.keep[0] == "THE_KEY"
    command = spec.command()
    assert command[0] == "openai"
    assert {"--url=https://example.org/v1", "--key=THE_KEY", "--omit=temperature"} < set(command)
    assert read.settings.defaults == {"planner": "scripted"}
    assert read.settings.fallbacks == {"far": ("scripted",)}


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("url", {"url": "example.org/v1"}),
    ("url", {"url": "ftp://example.org"}),
    ("url", {"url": f"https://me:{KEY}@example.org/v1"}),
    ("url", {"url": f"https://example.org/v1?key={KEY}"}),
    ("url", {"url": "https://example.org:99999/v1"}),
    ("url", {"url": "https://[example.org/v1"}),
    ("key", {"key": KEY}),
    ("key", {"key": "THE_KEY", "url": "http://example.org/v1"}),
    ("model", {"model": ""}),
    ("context", {"context": 255}),
    ("slots", {"slots": 0}),
    ("tries", {"tries": 11}),
    ("silence", {"silence": 0.0}),
    ("tokenizer", {"tokenizer": "cl100k"}),
]


@pytest.mark.parametrize(("field", "fields"), WRONG)
def test_a_wrong_field_is_named_and_never_quoted(field: str, fields: dict[str, Any]) -> None:
    right: dict[str, Any] = {"url": "https://example.org/v1", "model": "m"}
    check("far", Endpoint(**right))
    with pytest.raises(CallerError) as e:
        check("far", Endpoint(**{**right, **fields}))
    assert f"endpoints.far.{field}" in e.value.message
    assert "quite-a-secret" not in e.value.message


def test_a_wrong_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, monkeypatch, WHOLE.replace('"THE_KEY"', f'"{KEY}"'))
    with pytest.raises(CallerError) as e:
        load("test", tmp_path / "state")
    assert "config.toml: endpoints.far.key" in e.value.message
    assert "quite-a-secret" not in e.value.message


def test_a_name_that_means_a_local_model_is_refused(tmp_path: Path) -> None:
    endpoint = Endpoint(url="https://example.org/v1", model="m")
    with pytest.raises(CallerError) as e:
        available(config(tmp_path, endpoints={"scripted": endpoint}))
    assert e.value.errno is Errno.EEXIST


@pytest.mark.parametrize(
    "settings", [{"defaults": {"one": "gone"}}, {"fallbacks": {"scripted": ("gone",)}},
                 {"fallbacks": {"gone": ("scripted",)}}],
)  # fmt: skip
async def test_a_route_to_no_model_ends_the_start(settings: dict[str, Any]) -> None:
    with short_folder() as folder:
        kernel = Kernel(config(Path(folder), **settings), models=None, door=False)
        with pytest.raises(CallerError, match="'gone'"):
            await kernel.run()


# -- counting


async def test_an_upper_bound_counts_bytes_and_an_estimate_a_third() -> None:
    texts = ["", "hello", "schön", "日本語", "\ud800"]
    bound, estimate = BoundCounter(), EstimateCounter()
    assert await bound.count(texts) == [0, 5, 6, 9, 3]
    assert await estimate.count(texts) == [0, 2, 2, 3, 1]
    said = (Message("user", "hello"), Message("assistant", None))
    assert await bound.prompt(said) == 64 + 16 + 5 + 16
    assert await estimate.prompt(said) == 64 + 16 + 2 + 16


async def test_a_model_is_counted_as_its_endpoint_says(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        names = [
            counter_for(spec, nursery).name
            for tokenizer in ("bound", "estimate", "/no/such.gguf")
            for spec in specs(tmp_path, "http://127.0.0.1:1/v1", tokenizer=tokenizer)
            if spec.endpoint
        ]
    assert names == [BoundCounter.name, EstimateCounter.name, ""]
