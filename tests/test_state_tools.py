"""Tools in the pure kernel: who may call what, a person's word, conflicts, lives of servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ledger_helpers import LedgerDesk, Tables
from tests.state_helpers import MAIL, MS, OPERATOR, PLAN, SECOND

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.rights import Rights
from isovist.kernel.state.toolcalls import check_rules, check_use, offered, printable
from isovist.kernel.state.toolservers import ServerConfig, conflict, lock_of
from isovist.kernel.state.toolwords import Answer, MountedTool
from isovist.syscalls import messages as m
from isovist.syscalls.abi import tools as abi
from isovist.syscalls.abi.tools import ToolUse
from isovist.syscalls.errors import CallerError, Errno
from isovist.syscalls.operations import Selection
from isovist.syscalls.records import ToolRule

FILES = ServerConfig(
    "files",
    timeout=10 * SECOND,
    approve=("delete*",),
    approval=60 * SECOND,
    conflicts=(("write", "key:path"), ("sweep", "exclusive")),
)
CLOCK = ServerConfig("clock", kind="http", slots=1)
TOOLS = {
    "files": (
        MountedTool("read", read_only=True, idempotent=True),
        MountedTool("write", parameters='{"type": "object"}'),
        MountedTool("sweep", idempotent=True),
        MountedTool("delete"),
    ),
    "clock": (MountedTool("now", read_only=True), MountedTool("set time!")),
}


class ToolDesk(LedgerDesk):
    """Servers come up as soon as they are started, unless their name is in ``slow``."""

    def __init__(self, tables: Tables, *, slow: tuple[str, ...] = (), **more: Any) -> None:
        self.slow = slow
        super().__init__(tables, tool_servers=(FILES, CLOCK), **more)
        self.allow("mail", "files.*", "clock.*")

    def allow(self, agent: str, *names: str, **arguments: str) -> None:
        rules = [ToolRule(name, arguments) for name in names]
        self.state.users.grant(agent, set(), set(), tools=rules)

    def _carry_out(self, out: list[ins.Instruction]) -> list[ins.Instruction]:
        super()._carry_out(out)
        for i in out:
            if isinstance(i, ins.StartToolServer) and i.server not in self.slow:
                self.server_up(i.server, i.gen)
        return out

    def server_up(self, server: str, gen: int = 1) -> None:
        self.tell(ev.ToolsUp, server=server, gen=gen, tools=TOOLS[server])

    def dies(self, server: str = "files", gen: int = 1, **more: Any) -> None:
        self.tell(ev.ToolServerDied, server=server, gen=gen, reason="killed", **more)

    def use(self, channel: int, *uses: Any, **more: Any) -> Any:
        """The reply to a call of several tools, each a name or (name, arguments)."""
        asked = [(use, {}) if isinstance(use, str) else use for use in uses]
        calls = tuple(ToolUse(name, json.dumps(a)) for name, a in asked)
        return self.call(channel, abi.ToolsCall(calls=calls, **more))

    def calls(self, since: int = 0) -> list[ins.CallTool]:
        """All calls that servers were given since ``use`` was last called."""
        return [i for i in self.said if isinstance(i, ins.CallTool)][since:]

    def answer(self, call: ins.CallTool, text: str = "ok", **more: Any) -> None:
        answer = Answer(**{"text": text, "characters": len(text), **more})
        self.tell(ev.ToolDone, server=call.server, gen=call.gen, run=call.run, answer=answer)

    def noted(self, kind: str) -> list[tuple[str, str, dict[str, str]]]:
        return [
            (i.actor, i.subject, dict(i.detail))
            for i in self.said
            if isinstance(i, ins.Chain) and i.kind == kind
        ]

    def effects(self) -> list[str]:
        rows = self.tables._db.execute("SELECT state FROM effects")
        return sorted(state for (state,) in rows)


@pytest.fixture
def tables() -> Iterator[Tables]:
    found = Tables()
    yield found
    found.close()


@pytest.fixture
def desk(tables: Tables) -> ToolDesk:
    return ToolDesk(tables)


def one(reply: Any) -> abi.ToolResult:
    assert isinstance(reply, abi.ToolResults), reply
    (result,) = reply.results
    return result


# -- permission


def test_a_call_needs_a_grant_and_the_rights_of_its_process(desk: ToolDesk) -> None:
    desk.use(MAIL, ("files.read", {"path": "/a"}))
    (call,) = desk.calls()
    assert (call.tool, json.loads(call.arguments)) == ("read", {"path": "/a"})
    desk.answer(call, "text of /a")
    assert one(desk.word()).text == "text of /a"

    denied = one(desk.use(PLAN, ("files.read", {"path": "/a"})))
    assert denied.errno == Errno.EPERM
    assert "files.read" in denied.message
    assert not desk.calls()

    who = desk.state.channels[MAIL].who
    who.rights = Rights(tools=((ToolRule("files.read", {"path": "/home/*"}),),))
    assert one(desk.use(MAIL, ("files.read", {"path": "/a"}))).errno == Errno.EPERM
    assert one(desk.use(MAIL, "files.read")).errno == Errno.EPERM
    desk.use(MAIL, ("files.read", {"path": "/home/a"}))
    assert len(desk.calls()) == 1


def test_what_may_not_be_called_is_not_listed_and_not_told_from_what_is_not_there(
    desk: ToolDesk,
) -> None:
    desk.allow("plan", "files.re*", path="/x")
    shown = {t.name for t in desk.call(PLAN, abi.ToolsList()).tools}
    assert shown == {"memory_search", "memory_read", "session_search", "files.read"}
    every = {t.name for t in desk.call(MAIL, abi.ToolsList()).tools}
    assert every >= {"files.write", "clock.now", "clock.set time!"}
    assert {t.name for t in desk.call(MAIL, abi.ToolsList(names=("clock.*",))).tools} == {
        "clock.now",
        "clock.set time!",
    }
    there, absent = desk.use(PLAN, "files.delete", "nowhere.tool").results
    assert there.message.replace("files.delete", "") == absent.message.replace("nowhere.tool", "")
    assert there.errno == absent.errno == Errno.EPERM
    assert one(desk.use(MAIL, "files.nothing")).errno == Errno.ENOENT
    assert one(desk.use(OPERATOR, "nowhere.tool")).errno == Errno.ENOENT


def test_only_servers_that_may_be_called_are_started(desk: ToolDesk) -> None:
    desk.call(PLAN, abi.ToolsList())
    assert not [i for i in desk.said if isinstance(i, ins.StartToolServer)]
    desk.allow("plan", "clock.now")
    desk.call(PLAN, abi.ToolsList())
    assert [i.server for i in desk.said if isinstance(i, ins.StartToolServer)] == ["clock"]


def test_a_tool_of_the_kernels_own_needs_no_grant_and_reads_the_callers_view(
    desk: ToolDesk,
) -> None:
    assert desk.use(PLAN, ("memory_search", {"query": "x"}), user="ana") is None
    asked = [i for i in desk.said if isinstance(i, ins.Retrieve)]
    assert len(asked) == 1
    assert asked[0].view.reader.agent == "plan"
    assert asked[0].view.reader.user == "ana"
    desk.tell(ev.Retrieved, key=asked[0].key, turn=asked[0].turn, selection=Selection())
    assert one(desk.word()).text == "Nothing in view fits."
    bad = one(desk.use(PLAN, ("memory_search", {"q": "x"})))
    assert (bad.errno, "query" in bad.message) == (Errno.EINVAL, True)
    # What was asked inside counts for no rule of resolution.
    assert desk.state.channels[PLAN].who.seen == ["ana"]


def test_a_call_that_ends_takes_its_inner_syscalls_along(desk: ToolDesk) -> None:
    desk.use(PLAN, ("memory_search", {"query": "x"}), user="ana", deadline_ms=1000)
    assert len(desk.state.calls) == 2
    desk.sleep(2 * SECOND)
    assert desk.word().errno == Errno.ETIMEDOUT
    assert not desk.state.calls
    desk.use(PLAN, ("memory_search", {"query": "x"}), user="ana")
    desk.tell(ev.Detached, channel=PLAN, why="gone")
    assert not desk.state.calls


@pytest.mark.parametrize(
    ("use", "errno"),
    [
        (ToolUse("", "{}"), Errno.EINVAL),
        (ToolUse("a\x1b[2J", "{}"), Errno.EINVAL),
        (ToolUse("a.b", "[]"), Errno.EINVAL),
        (ToolUse("a.b", "{"), Errno.EINVAL),
        (ToolUse("a.b", "{}", "k" * 300), Errno.EINVAL),
        (ToolUse("a.b", '{"a": "' + "x" * 70_000 + '"}'), Errno.EMSGSIZE),
        (ToolUse("a.b", '{"a":' * 70 + "1" + "}" * 70), Errno.EINVAL),
    ],
)
def test_a_bad_call_is_refused_with_its_place(desk: ToolDesk, use: ToolUse, errno: Errno) -> None:
    failed = desk.call(MAIL, abi.ToolsCall(calls=(ToolUse("files.read"), use)))
    assert (failed.errno, failed.field) == (errno, "calls[1]")
    assert not desk.calls()
    assert desk.call(MAIL, abi.ToolsCall(calls=())).field == "calls"


def test_one_meaning_is_one_text() -> None:
    arguments, text = check_use(ToolUse("a.b", '{"b": 1, "a": {"d": 2, "c": 3}, "b": 4}'), "x")
    assert text == '{"a":{"c":3,"d":2},"b":4}'
    assert arguments["b"] == 4


def test_rules_of_a_grant_are_checked() -> None:
    check_rules([ToolRule("*"), ToolRule("files.*", {"path": "*"})])
    for rule in (ToolRule("files"), ToolRule(""), ToolRule("a.b\n"), ToolRule("a.b", {"": "x"})):
        with pytest.raises(CallerError) as e:
            check_rules([rule])
        assert e.value.field == "tools"


# -- a person's word


def waiting(desk: ToolDesk) -> tuple[abi.Approval, ...]:
    return desk.call(OPERATOR, abi.ToolsApprovals()).approvals


def test_a_call_waits_for_a_person_once_each_time(desk: ToolDesk) -> None:
    assert desk.use(MAIL, ("files.delete", {"path": "/a\u202e\x1b"}), user="ana") is None
    frame = desk.frame
    assert not desk.calls()
    (asked,) = waiting(desk)
    assert (asked.name, asked.agent, asked.user) == ("files.delete", "mail", "ana")
    assert asked.arguments == '{"path":"/a\\u202e\\u001b"}'
    assert asked.until - asked.asked_at == 60 * SECOND
    assert desk.call(MAIL, abi.ToolsApprovals()).errno == Errno.EPERM
    assert desk.call(MAIL, abi.ToolsAnswer(id=asked.id, approve=True)).errno == Errno.EPERM

    other = abi.ToolsAnswer(id=asked.id, approve=True, digest="0" * 64)
    assert desk.call(OPERATOR, other).errno == Errno.ESTALE
    reply = desk.call(OPERATOR, abi.ToolsAnswer(id=asked.id, approve=True, digest=asked.digest))
    assert reply.approvals == ()
    (call,) = desk.calls()
    desk.answer(call, "gone")
    assert one(desk.word(frame)).text == "gone"
    again = desk.call(OPERATOR, abi.ToolsAnswer(id=asked.id, approve=True))
    assert again.errno == Errno.ENOENT
    # The same once more is another call, and waits for another word.
    desk.use(MAIL, ("files.delete", {"path": "/a\u202e\x1b"}), user="ana")
    assert not desk.calls()
    assert waiting(desk)[0].id != asked.id
    assert waiting(desk)[0].digest == asked.digest


def test_a_digest_binds_tool_arguments_agent_and_user(desk: ToolDesk) -> None:
    desk.allow("plan", "files.*")
    for channel, name, path, user in (
        (MAIL, "files.delete", "/a", "ana"),
        (MAIL, "files.delete", "/b", "ana"),
        (MAIL, "files.delete", "/a", "bob"),
        (PLAN, "files.delete", "/a", "ana"),
    ):
        desk.use(channel, (name, {"path": path}), user=user)
    assert len({asked.digest for asked in waiting(desk)}) == 4


@pytest.mark.parametrize("how", ["denied", "timed out"])
def test_a_no_and_a_silence_are_refusals(desk: ToolDesk, how: str) -> None:
    desk.use(MAIL, "files.delete")
    frame = desk.frame
    (asked,) = waiting(desk)
    desk.said = []
    if how == "denied":
        desk.call(OPERATOR, abi.ToolsAnswer(id=asked.id, approve=False))
    else:
        desk.sleep(61 * SECOND)
    result = one(desk.word(frame))
    assert result.errno == Errno.EPERM
    assert ("denied" if how == "denied" else "means no") in result.message
    assert not desk.calls()
    ((_, subject, detail),) = desk.noted("approval")
    assert (subject, detail["word"], detail["id"]) == ("files.delete", how, asked.id)
    assert not desk.effects()


def test_what_was_taken_away_meanwhile_is_not_called(desk: ToolDesk) -> None:
    desk.use(MAIL, "files.delete")
    frame = desk.frame
    (asked,) = waiting(desk)
    desk.state.users.grant("mail", set(), set(), revoke=True, tools=[ToolRule("files.*")])
    desk.call(OPERATOR, abi.ToolsAnswer(id=asked.id, approve=True))
    assert one(desk.word(frame)).errno == Errno.EPERM
    assert not desk.calls()


def test_who_waits_for_a_person_and_ends_is_forgotten(desk: ToolDesk) -> None:
    desk.use(MAIL, "files.delete", deadline_ms=1000)
    assert waiting(desk)
    desk.sleep(2 * SECOND)
    assert not waiting(desk)
    for _ in range(16):
        desk.use(MAIL, "files.delete")
    assert one(desk.use(MAIL, "files.delete")).errno == Errno.EAGAIN
    desk.tell(ev.Detached, channel=MAIL, why="gone")
    assert not waiting(desk)


def test_a_persons_eyes_see_what_is_there() -> None:
    assert printable('{"a":"é 漢 \u200b\u2066\x07"}') == '{"a":"é 漢 \\u200b\\u2066\\u0007"}'


# -- effects


def test_what_only_reads_leaves_no_effect_and_all_else_does(desk: ToolDesk) -> None:
    desk.use(MAIL, "files.read", ("files.write", {"path": "a"}), "files.sweep")
    assert desk.effects() == ["started", "started"]
    for call in desk.calls():
        desk.answer(call)
    for call in desk.calls(2):
        desk.answer(call)
    read, write, sweep = desk.word().results
    assert read.effect == ""
    assert write.effect != sweep.effect != ""
    assert desk.effects() == ["done", "done"]
    assert [subject for _, subject, _ in desk.noted("effect")] == ["files.write", "files.sweep"]


def test_under_one_key_a_call_is_made_once(desk: ToolDesk) -> None:
    request = abi.ToolsCall(calls=(ToolUse("files.write", '{"path": "a"}', "mine"),), user="ana")
    desk.call(MAIL, request)
    (call,) = desk.calls()
    assert one(desk.call(MAIL, request)).errno == Errno.EAGAIN
    desk.answer(call, "x" * 9000)
    again = one(desk.call(MAIL, request))
    assert again.text == "x" * 8000
    assert again.characters == 9000
    assert not desk.calls()
    changed = abi.ToolsCall(calls=(ToolUse("files.write", '{"path": "b"}', "mine"),), user="ana")
    assert one(desk.call(MAIL, changed)).errno == Errno.EINVAL


def test_a_call_that_nobody_knows_the_end_of_is_unknown(desk: ToolDesk) -> None:
    desk.use(MAIL, ("files.write", {"path": "a"}))
    desk.sleep(11 * SECOND)
    result = one(desk.word())
    assert result.errno == Errno.ETIMEDOUT
    assert "10 s" in result.message
    assert desk.effects() == ["unknown"]


def test_what_ends_after_its_request_is_put_on_record(desk: ToolDesk) -> None:
    desk.use(MAIL, ("files.write", {"path": "a"}), ("files.write", {"path": "a"}))
    (call,) = desk.calls()
    desk.tell(ev.Detached, channel=MAIL, why="gone")
    (cancelled,) = [i for i in desk.said if isinstance(i, ins.CancelTool)]
    assert cancelled.run == call.run
    assert desk.effects() == ["failed", "started"], "the second had never begun"
    desk.answer(call)
    assert desk.effects() == ["done", "failed"]


def test_nothing_is_called_before_its_effect_is_on_record(desk: ToolDesk) -> None:
    desk.use(MAIL, "files.read")  # the server is up
    desk.hold = True
    desk.use(MAIL, ("files.write", {"path": "a"}), deadline_ms=1000)
    assert not desk.calls()
    desk.sleep(2 * SECOND)
    desk.settle()
    assert not desk.calls(), "its request has ended, so it never began"
    assert not desk.effects()


# -- conflicts and queues


def test_locks() -> None:
    assert lock_of("shared", {}) == ""
    assert lock_of("exclusive", {"a": 1}) == "*"
    assert lock_of("key:a", {"a": {"y": 1, "x": 2}}) == lock_of("key:a", {"a": {"x": 2, "y": 1}})
    assert lock_of("key:a", {"b": 1}) == "*"
    assert conflict("*", "")
    assert conflict('a="x"', 'a="x"')
    assert not conflict('a="x"', 'a="y"')
    assert not conflict("", "")


def test_calls_of_one_list_run_side_by_side_as_far_as_they_may(desk: ToolDesk) -> None:
    a, b = ("files.write", {"path": "a"}), ("files.write", {"path": "b"})
    desk.use(MAIL, "files.read", a, a, b, "files.sweep", "files.read")
    calls = desk.calls()
    assert [(c.tool, json.loads(c.arguments).get("path")) for c in calls] == [
        ("read", None), ("write", "a"), ("write", "b"),
    ]  # fmt: skip
    desk.answer(calls[1])
    assert [c.tool for c in desk.calls(3)] == ["write"], "the second of a"
    for call in (calls[0], calls[2], desk.calls()[3]):
        desk.answer(call)
    assert [c.tool for c in desk.calls(4)] == ["sweep"], "alone, and nobody overtakes it"
    desk.answer(desk.calls()[4])
    assert [c.tool for c in desk.calls(5)] == ["read"]
    desk.answer(desk.calls()[5])
    assert len(desk.word().results) == 6


def test_a_server_is_given_no_more_than_its_slots(desk: ToolDesk) -> None:
    desk.use(MAIL, "clock.now", "clock.now", "clock.now")
    assert len(desk.calls()) == 1
    desk.answer(desk.calls()[0])
    assert len(desk.calls()) == 2


def test_one_agent_cannot_fill_a_queue(desk: ToolDesk) -> None:
    desk.allow("plan", "clock.*")
    desk.use(MAIL, *["clock.now"] * 64)
    refused = one(desk.use(MAIL, "clock.now"))
    assert refused.errno == Errno.EAGAIN
    assert "64" in refused.message
    assert desk.use(PLAN, "clock.now") is None


# -- lives


def test_a_call_that_hangs_is_cancelled_and_blocks_no_other_server(desk: ToolDesk) -> None:
    desk.use(MAIL, "files.read")
    (hung,) = desk.calls()
    frame = desk.frame
    desk.use(MAIL, "clock.now")
    desk.answer(desk.calls()[0], "noon")
    assert one(desk.word()).text == "noon"
    desk.said = []
    desk.sleep(11 * SECOND)
    assert [i.run for i in desk.said if isinstance(i, ins.CancelTool)] == [hung.run]
    assert one(desk.word(frame)).errno == Errno.ETIMEDOUT
    desk.said = []
    desk.sleep(6 * SECOND)
    (stop,) = [i for i in desk.said if isinstance(i, ins.StopToolServer)]
    assert (stop.server, stop.gen) == ("files", 1)


def test_a_cancelled_call_that_ends_in_time_leaves_its_server_alone(desk: ToolDesk) -> None:
    desk.use(MAIL, "files.read", deadline_ms=1000)
    (call,) = desk.calls()
    desk.sleep(2 * SECOND)
    desk.answer(call, errno=int(Errno.ECANCELED), lost=True)
    desk.said = []
    desk.sleep(20 * SECOND)
    assert not [i for i in desk.said if isinstance(i, ins.StopToolServer | ins.CancelTool)]


def test_a_crash_fails_what_runs_and_keeps_what_waits(desk: ToolDesk) -> None:
    desk.use(MAIL, "files.sweep", "files.read")
    (call,) = desk.calls()
    desk.dies()
    assert desk.word() is None
    assert desk.effects() == ["unknown"]
    desk.said.clear()
    desk.sleep(101 * MS)
    assert [i.gen for i in desk.said if isinstance(i, ins.StartToolServer)] == [2]
    desk.answer(call)  # a late word of the dead one
    again = desk.calls()[-1]
    assert (again.tool, again.gen) == ("read", 2)
    desk.answer(again)
    swept, read = desk.word().results
    assert (swept.errno, read.text) == (Errno.EIO, "ok")
    assert "nobody knows" in swept.message


def test_a_server_that_cannot_run_is_left_alone_for_a_while(tables: Tables) -> None:
    desk = ToolDesk(tables, slow=("files",))
    desk.use(MAIL, "files.read")
    frame = desk.frame
    desk.dies(fatal=True)
    failed = one(desk.word(frame))
    assert failed.errno == Errno.EAGAIN
    assert failed.retry_at > 0
    refused = one(desk.use(MAIL, "files.read"))
    assert refused.retry_at == failed.retry_at
    assert desk.call(MAIL, abi.ToolsList()).missing == {"files": "killed"}
    desk.slow = ()
    desk.sleep(2 * SECOND)
    desk.use(MAIL, "files.read")
    assert desk.calls()[0].gen == 2


def test_a_server_that_dies_again_and_again_gets_ever_longer_pauses(tables: Tables) -> None:
    desk = ToolDesk(tables, slow=("files",))
    desk.use(MAIL, "files.read")
    for gen in (1, 2, 3):
        desk.dies(gen=gen)
        desk.sleep(500 * MS)
    assert one(desk.word()).errno == Errno.EAGAIN
    pauses = []
    for gen in range(4, 12):
        server = desk.state.tools.servers.find("files")
        assert server is not None
        pauses.append(server.until - desk.now)
        desk.now = server.until
        desk.use(MAIL, "files.read")
        desk.dies(gen=gen)
    assert pauses == sorted(pauses)
    assert server.until - desk.now == 60 * SECOND, "the longest"


def test_who_waits_for_a_start_waits_no_longer_than_it_may_last(tables: Tables) -> None:
    desk = ToolDesk(tables, slow=("files", "clock"))
    desk.call(MAIL, abi.ToolsList())
    desk.said = []
    desk.sleep(61 * SECOND)
    stops = [i for i in desk.said if isinstance(i, ins.StopToolServer)]
    assert {i.server for i in stops} == {"files", "clock"}
    desk.server_up("clock")
    for gen in (1, 2, 3):
        desk.dies(gen=gen)
        desk.sleep(SECOND)
    reply = desk.word()
    assert set(reply.missing) == {"files"}
    assert "clock.now" in {t.name for t in reply.tools}


def test_tools_may_change_while_a_server_is_up(desk: ToolDesk) -> None:
    desk.use(MAIL, "files.read")
    desk.tell(ev.ToolsUp, server="files", gen=1, tools=(MountedTool("new"),))
    assert one(desk.use(MAIL, "files.read")).errno == Errno.ENOENT
    desk.use(MAIL, "files.new")
    assert desk.calls()


def test_the_operator_sees_the_servers(desk: ToolDesk) -> None:
    desk.use(MAIL, "files.read", "files.sweep")
    files, clock = desk.call(OPERATOR, abi.ToolsServers()).servers
    assert (files.state, files.running, files.waiting, files.tools) == ("up", 1, 1, 4)
    assert (clock.state, clock.kind) == ("idle", "http")
    assert desk.call(MAIL, abi.ToolsServers()).errno == Errno.EPERM


def test_names_for_models() -> None:
    assert offered("files", "read") == "files__read"
    strange = offered("files", "a.b/c d")
    assert len({strange, offered("files", "a_b_c_d"), offered("files", "a.b/c_d")}) == 3
    assert len(offered("files", "x" * 128)) == 64


def test_a_call_may_use_the_name_that_models_know(desk: ToolDesk) -> None:
    desk.allow("plan", "files.read")
    desk.call(MAIL, abi.ToolsList())
    strange = offered("clock", "set time!")
    desk.use(MAIL, "files__read", strange)
    assert [call.tool for call in desk.calls()] == ["read", "set time!"]
    # It is the tool's own name that is permitted, noted and told.
    refused = one(desk.use(PLAN, "files__write"))
    assert (refused.name, refused.errno) == ("files.write", Errno.EPERM)
    assert one(desk.use(MAIL, "files__none")).errno == Errno.EPERM


def test_a_long_answer_is_read_by_its_pair_alone(desk: ToolDesk) -> None:
    desk.call(MAIL, abi.ToolsOutput(id="o1", offset=30_000, user="ana"))
    (asked,) = [i for i in desk.said if isinstance(i, ins.ReadOutput)]
    assert (asked.id, asked.offset, asked.owner) == ("o1", 30_000, "mail/ana")
    desk.tell(ev.OutputRead, key=asked.key, text="rest", characters=30_004)
    assert desk.word() == abi.ToolOutput(text="rest", offset=30_000, characters=30_004)
    assert desk.call(MAIL, abi.ToolsOutput(id="o1", offset=-1)).field == "offset"


# -- whatever comes, every call ends and no rule is broken

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["use", "answer", "die", "up", "sleep", "approve", "deny", "cancel"]),
        st.integers(0, 5),
    ),
    max_size=30,
)
NAMES = ("files.read", "files.write", "files.sweep", "files.delete", "clock.now", "clock.none")


@given(STEPS)
@settings(max_examples=150, deadline=None)
def test_every_call_ends_once_whatever_happens(steps: list[tuple[str, int]]) -> None:
    tables = Tables()
    try:
        desk = ToolDesk(tables, slow=("clock",))
        words: dict[int, int] = {}
        seen = 0

        def count() -> None:
            for i in desk.said:
                if isinstance(i, ins.Reply) and not isinstance(i.message, m.Part):
                    words[i.call] = words.get(i.call, 0) + 1

        frames: list[int] = []
        given_: dict[tuple[str, int, int], ins.CallTool] = {}
        for what, n in [*steps, ("sleep", 5), ("die", 0), ("die", 1)]:
            count()
            desk.said = []
            running = [
                call
                for call in given_.values()
                if (s := desk.state.tools.servers.find(call.server)) and s.gen == call.gen
                and call.run in s.running
            ]  # fmt: skip
            server = desk.state.tools.servers.all()[n % 2]
            if what == "use":
                uses = [(NAMES[(n + k) % 6], {"path": str(k)}) for k in range(1 + n % 3)]
                calls = tuple(ToolUse(name, json.dumps(a)) for name, a in uses)
                desk.ask(MAIL, abi.ToolsCall(calls=calls))
                frames.append(desk.frame)
            elif what == "answer" and running:
                desk.answer(running[n % len(running)], errno=n % 2, lost=n == 1)
            elif what == "die" and server.state in ("starting", "up"):
                desk.dies(server.config.name, server.gen)
            elif what == "up" and server.state == "starting":
                desk.server_up(server.config.name, server.gen)
            elif what == "sleep":
                desk.sleep((1, 100 * MS, SECOND, 7 * SECOND, 61 * SECOND, 400 * SECOND)[n])
            elif what in ("approve", "deny") and desk.state.tools._approvals:
                id_ = next(iter(desk.state.tools._approvals))
                desk.ask(OPERATOR, abi.ToolsAnswer(id=id_, approve=what == "approve"))
            elif what == "cancel" and frames:
                desk.ask(MAIL, m.Cancel(call=frames[n % len(frames)]))
            for call in desk.calls():
                assert (call.server, call.gen, call.run) not in given_, "given twice"
                given_[call.server, call.gen, call.run] = call
                seen += 1
        for _ in range(4):  # whatever is left starts in vain until it is given up
            for server in desk.state.tools.servers.all():
                if server.state in ("starting", "up"):
                    desk.dies(server.config.name, server.gen)
            desk.sleep(400 * SECOND)
            count()
            desk.said = []
        count()
        assert not [c for c in desk.state.calls.values() if isinstance(c.request, abi.ToolsCall)]
        assert all(words[frame] == 1 for frame in frames)
        assert "started" not in desk.effects()
    finally:
        tables.close()
