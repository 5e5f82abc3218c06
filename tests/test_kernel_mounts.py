"""Tool servers in a whole kernel: one that was not written here, bad ones, and functions."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from kernel_helpers import client, running, short_folder

from isovist.kernel.kernel import Kernel
from isovist.kernel.tools.config import Mounted, ToolSettings
from isovist.syscalls.aio import AsyncClient
from isovist.syscalls.errors import CallerError, Errno, WorldError
from isovist.syscalls.mounted import use
from isovist.syscalls.records import ToolRule

HANGS_S = 300
TESTS = Path(__file__).parent
SDK = pytest.mark.skipif(
    importlib.util.find_spec("mcp") is None, reason="needs the extra: pip install 'isovist[mcp]'"
)
TIME = ToolSettings(
    command=(sys.executable, "-m", "mcp_server_time", "--local-timezone", "Europe/Rome"),
    approve=("convert_time",),
)
ROME = {"source_timezone": "Europe/Rome", "time": "12:00", "target_timezone": "Asia/Tokyo"}


def bad(**more: Any) -> ToolSettings:
    command = (sys.executable, str(TESTS / "mcp_servers.py"))
    return ToolSettings(command=command, mounts=(Mounted(path=str(TESTS)),), **more)


@asynccontextmanager
async def desks(tools: dict[str, ToolSettings]) -> AsyncIterator[tuple[Kernel, Any]]:
    """A kernel with these servers, and the operator's client."""
    with short_folder() as folder, trio.fail_after(HANGS_S):
        async with (
            running(Path(folder), tools=tools) as kernel,
            client(kernel, "operator", operator=True) as k,
        ):
            yield kernel, k


async def allow(k: AsyncClient, agent: str, *names: str, **arguments: str) -> None:
    await k.grant(agent, tools=tuple(ToolRule(name, arguments) for name in names))


async def until(condition: Any) -> None:
    """Poll within the bound of the test."""
    while not condition():
        await trio.sleep(0.01)


# -- a server from a package that was not written here


@SDK
async def test_a_real_server_is_mounted_listed_called_denied_and_approved() -> None:
    async with desks({"time": TIME}) as (kernel, k):
        await allow(k, "clerk", "time.*")
        async with (
            client(kernel, "clerk", user="ana") as clerk,
            client(kernel, "guest", user=None) as guest,
        ):
            await k.grant("clerk", users=("ana",))
            listed = {tool.name: tool for tool in (await clerk.tools_list("time.*")).tools}
            assert set(listed) == {"time.get_current_time", "time.convert_time"}
            asked = listed["time.convert_time"]
            assert asked.approval
            assert asked.read_only
            assert "source_timezone" in json.loads(asked.parameters)["properties"]

            now = await clerk.tool_call("time.get_current_time", {"timezone": "Asia/Tokyo"})
            assert json.loads(now.text)["timezone"] == "Asia/Tokyo"
            wrong = await clerk.tool_call("time.get_current_time", {"timezone": "Nowhere/At_all"})
            assert wrong.failed

            assert not (await guest.tools_list("time.*")).tools
            with pytest.raises(CallerError) as e:
                await guest.tool_call("time.get_current_time", {"timezone": "Asia/Tokyo"})
            assert e.value.errno is Errno.EPERM
            assert "time.get_current_time" in e.value.message

            results: list[Any] = []

            async def convert() -> None:
                try:
                    results.append(await clerk.tool_call("time.convert_time", ROME))
                except CallerError as refused:
                    results.append(refused)

            for approve in (True, False):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(convert)
                    while not (waiting := (await k.tools_approvals()).approvals):
                        await trio.sleep(0.01)
                    (one,) = waiting
                    assert (one.agent, one.user, one.name) == ("clerk", "ana", "time.convert_time")
                    assert json.loads(one.arguments) == ROME
                    await k.tools_answer(one.id, approve, one.digest)
            approved, denied = results
            assert json.loads(approved.text)["time_difference"] in ("+8.0h", "+7.0h")
            assert denied.errno is Errno.EPERM


@SDK
async def test_the_loop_of_a_chat_calls_a_real_server() -> None:
    # The scripted model calls the tools that the user's words name, with those words.
    async with desks({"bad": bad()}) as (kernel, k):
        await allow(k, "clerk", "bad.echo")
        async with client(kernel, "clerk") as clerk:
            reply = await clerk.chat("bad__echo this", tools_of=("bad.*",), memory=False)
            assert [(made.name, made.errno) for made in reply.made] == [("bad.echo", 0)]
            assert reply.turns[-1].content == "bad__echo this"
            assert "bad__echo this" in reply.text
            assert reply.calls == ()


# -- bad servers harm nobody else


@SDK
@pytest.mark.promise("kernel.survives")
async def test_hanging_and_crashing_servers_leave_others_unharmed() -> None:
    tools = {
        "hang": bad(timeout=1.0),
        "crash": bad(),
        "good": bad(),
        "broken": ToolSettings(command=(sys.executable, "-c", "print('no protocol')")),
        "absent": ToolSettings(command=("/no/such/program",)),
    }
    async with desks(tools) as (_, k):
        good = await k.tool_call("good.echo", {"text": "before"})
        assert good.text == "before"
        results: dict[str, Any] = {}

        async def call(name: str, arguments: dict[str, Any]) -> None:
            (results[name],) = (await k.tools_call([use(name, arguments)])).results

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, "hang.hang", {})
            nursery.start_soon(call, "hang.echo", {"text": "behind one that hangs"})
            nursery.start_soon(call, "crash.crash", {})
            nursery.start_soon(call, "broken.tool", {})
            nursery.start_soon(call, "absent.tool", {})
            for n in range(20):
                said = await k.tool_call("good.echo", {"text": str(n)})
                assert said.text == str(n)
        assert results["hang.hang"].errno == Errno.ETIMEDOUT
        assert results["crash.crash"].errno == Errno.EIO
        assert results["crash.crash"].effect
        assert results["broken.tool"].errno == results["absent.tool"].errno == Errno.EAGAIN
        assert "no program" in results["absent.tool"].message

        # Both are started anew, and answer.
        for name in ("hang", "crash"):
            while True:
                (again,) = (await k.tools_call([use(f"{name}.echo", {"text": "again"})])).results
                if again.text == "again":
                    break
                await trio.sleep(0.05)
        states = {s.name: s for s in (await k.tools_servers()).servers}
        assert states["good"].starts == 1
        assert states["crash"].starts == 2
        assert states["hang"].starts >= 2
        assert states["absent"].state == "failed"


@SDK
async def test_a_cancelled_call_ends_and_the_server_goes_on() -> None:
    async with desks({"bad": bad()}) as (kernel, k):
        await k.tool_call("bad.echo", {"text": ""})
        with pytest.raises(WorldError):
            await k.tool_call("bad.wait", {}, deadline_ms=300)
        server = kernel.state.tools.servers.find("bad")
        assert server is not None
        await until(lambda: not server.running)
        assert (await k.tool_call("bad.echo", {"text": "on"})).text == "on"
        assert server.gen == 1


@SDK
async def test_a_long_answer_is_cut_and_the_rest_can_be_read() -> None:
    async with desks({"bad": bad()}) as (kernel, k):
        await allow(k, "one", "bad.*")
        await allow(k, "two", "bad.*")
        async with client(kernel, "one") as one, client(kernel, "two") as two:
            whole = "0123456789" * 20_000
            result = await one.tool_call("bad.big", {"characters": len(whole)})
            assert result.characters == len(whole)
            assert result.text == whole[:30_000]
            text, offset = "", 0
            while offset < len(whole):
                part = await one.tools_output(result.output, offset)
                assert part.characters == len(whole)
                text, offset = text + part.text, offset + len(part.text)
            assert text == whole
            for asker, name in ((two, result.output), (one, "o" + "0" * 20), (one, "../x")):
                with pytest.raises(CallerError) as e:
                    await asker.tools_output(name)
                assert e.value.errno is Errno.ENOENT
            short = await one.tool_call("bad.big", {"characters": 30_000})
            assert (short.output, len(short.text)) == ("", 30_000)
            failed = await one.tool_call("bad.fails")
            assert failed.failed


@SDK
async def test_a_server_is_confined_to_its_folder_and_its_mounts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ISOVIST_SECRET", "x")
    monkeypatch.setenv("ISO_GIVEN", "y")
    (tmp_path / "shared").mkdir()
    shared = Mounted(path=str(tmp_path / "shared"), mode="rw")
    hers = bad(env=("ISO_GIVEN",))
    mounts = (*hers.mounts, shared)
    settings = ToolSettings(command=hers.command, env=hers.env, mounts=mounts)
    async with desks({"bad": settings}) as (kernel, k):
        secret = kernel.config.database
        said = (await k.tool_call("bad.reach", {"path": str(secret)})).text
        assert "read it" not in said
        assert "the network is there" not in said
        assert "connected" not in said
        assert said.endswith("ISO_GIVEN")
        written = str(tmp_path / "shared" / "file")
        assert (await k.tool_call("bad.write", {"path": written, "text": "hello"})).effect
        assert Path(written).read_text() == "hello"
        outside = await k.tool_call("bad.write", {"path": str(tmp_path / "no"), "text": "x"})
        assert outside.failed
    async with desks({"bad": bad(network=True)}) as (_, k):
        said = (await k.tool_call("bad.reach", {"path": "/etc/shadow"})).text
        assert "the network is there" in said


@SDK
async def test_a_mount_of_the_kernels_own_folder_is_refused() -> None:
    with short_folder() as folder, trio.fail_after(HANGS_S):
        tools = {"bad": bad(folder=str(Path(folder) / "sub"))}
        (Path(folder) / "sub").mkdir()
        async with (
            running(Path(folder), tools=tools) as kernel,
            client(kernel, "operator", operator=True) as k,
        ):
            missing = (await k.tools_list()).missing
            assert "lies in" in missing["bad"]


@SDK
async def test_one_effect_under_one_key_through_a_real_server(tmp_path: Path) -> None:
    shared = Mounted(path=str(tmp_path), mode="rw")
    settings = bad()
    settings = ToolSettings(command=settings.command, mounts=(*settings.mounts, shared))
    async with desks({"bad": settings}) as (_, k):
        arguments = {"path": str(tmp_path / "log"), "text": "once\n"}
        first = await k.tool_call("bad.write", arguments, key="step-1")
        again = await k.tool_call("bad.write", arguments, key="step-1")
        assert again.text == first.text
        assert again.effect == first.effect
        assert (tmp_path / "log").read_text() == "once\n"


@SDK
async def test_a_server_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        os.set_inheritable(listener.fileno(), True)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        program = [sys.executable, str(TESTS / "mcp_servers.py"), "http", str(listener.fileno())]
        process = subprocess.Popen(program, pass_fds=[listener.fileno()])
        listener.close()  # a connection is refused when the server is gone
        monkeypatch.setenv("TOKEN_OF_TEST", "t")
        try:
            web = ToolSettings(url=url, key="TOKEN_OF_TEST")
            async with desks({"web": web}) as (_, k):
                assert (await k.tool_call("web.echo", {"text": "over http"})).text == "over http"
                assert (await k.tool_call("web.fails")).failed
                process.kill()
                process.wait()
                (gone,) = (await k.tools_call([use("web.echo", {"text": "x"})])).results
                assert gone.errno in (Errno.EIO, Errno.EAGAIN)
        finally:
            process.kill()
            process.wait()


# -- Python functions


@pytest.fixture
def native(tmp_path: Path) -> ToolSettings:
    shutil.copy(TESTS / "native_tools.py", tmp_path / "some_tools.py")
    return ToolSettings(python="some_tools", folder=str(tmp_path), timeout=20.0)


async def test_functions_are_tools_by_their_annotations(native: ToolSettings) -> None:
    async with desks({"py": native}) as (_, k):
        listed = {tool.name: tool for tool in (await k.tools_list("py.*")).tools}
        assert set(listed) == {
            f"py.{name}"
            for name in (
                "add",
                "length",
                "count",
                "fail",
                "crash",
                "hang",
                "big",
                "greedy",
                "reaches",
            )
        }
        add = listed["py.add"]
        assert (add.description, add.read_only) == ("The sum of two numbers.", True)
        schema = json.loads(add.parameters)
        assert schema["properties"]["a"] == {"type": "integer"}
        assert (schema["required"], schema["additionalProperties"]) == (["a"], False)
        assert (await k.tool_call("py.add", {"a": 2, "b": 3})).text == "5"
        assert (await k.tool_call("py.add", {"a": 2})).text == "3"
        for arguments, named in (({"a": "x"}, "$.a"), ({}, "`a`"), ({"a": 1, "c": 1}, "`c`"),
                                 ({"a": 1, "b": -1}, "$.b")):  # fmt: skip
            wrong = await k.tool_call("py.add", arguments)
            assert wrong.failed
            assert named in wrong.text
        points = {"points": [{"x": 1}, {"x": 2, "y": 3}]}
        result = await k.tool_call("py.length", points)
        assert json.loads(result.text) == {"name": "path", "points": 2, "x": [1, 2]}


async def test_each_call_of_a_function_is_a_process_of_its_own(
    native: ToolSettings, tmp_path: Path
) -> None:
    leave = tmp_path / "pid"
    async with desks({"py": native}) as (kernel, k):
        assert [(await k.tool_call("py.count")).text for _ in range(3)] == ["1", "1", "1"]
        (own,) = json.loads((await k.tool_call("py.reaches")).text)
        assert own, "the pipe for its own answer alone"
        failed = await k.tool_call("py.fail", {"why": "no such thing"})
        assert (failed.failed, failed.text) == (True, "ValueError: no such thing")
        (crashed,) = (await k.tools_call([use("py.crash")])).results
        assert (crashed.errno, "SIGSEGV" in crashed.message) == (Errno.EIO, True)
        greedy = await k.tool_call("py.greedy")
        assert (greedy.failed, greedy.text.startswith("MemoryError")) == (True, True)
        assert (await k.tool_call("py.big", {"characters": 40_000})).characters == 40_000

        async with trio.open_nursery() as nursery:
            stopping = trio.CancelScope()

            async def hang() -> None:
                with stopping:
                    await k.tool_call("py.hang", {"leave": str(leave)})

            nursery.start_soon(hang)
            await until(lambda: leave.exists() and leave.read_text())
            assert (await k.tool_call("py.add", {"a": 1})).text == "2", "beside one that hangs"
            stopping.cancel()
        server = kernel.state.tools.servers.find("py")
        assert server is not None
        await until(lambda: not server.running)
        assert server.gen == 1


async def test_a_module_that_is_not_there_is_told_with_its_name() -> None:
    async with desks({"py": ToolSettings(python="no_such_module_here")}) as (_, k):
        missing = (await k.tools_list()).missing
        assert "no_such_module_here" in missing["py"]


async def test_nothing_of_a_server_outlives_the_kernel(
    native: ToolSettings, tmp_path: Path
) -> None:
    async with desks({"py": native}) as (kernel, k):
        await k.tool_call("py.count")
        processes = [life.process.pid for life in kernel.mounts._lives.values()]
        assert processes
    for pid in processes:
        assert not Path(f"/proc/{pid}").exists()
