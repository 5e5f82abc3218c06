"""Mail between agents: under grants, durable, at least once, each under one id."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from ledger_helpers import LedgerDesk, Tables
from state_helpers import MAIL, MS, OPERATOR, PLAN, SECOND

from isovist.kernel.state import events as ev
from isovist.kernel.state.mail import LEASES
from isovist.kernel.state.users import own_user
from isovist.syscalls import messages as m
from isovist.syscalls.abi import mail as abi
from isovist.syscalls.errors import Errno
from isovist.syscalls.ledger import MAX_MAIL, MAX_MAIL_BYTES


@pytest.fixture
def tables() -> Iterator[Tables]:
    tables = Tables()
    yield tables
    tables.close()


@pytest.fixture
def desk(tables: Tables) -> LedgerDesk:
    return granted(tables)


def granted(tables: Tables) -> LedgerDesk:
    """``plan`` may write to ``mail``; both serve ana, and ``mail`` serves bob too."""
    desk = LedgerDesk(tables)
    desk.ask(OPERATOR, m.Grant(agent="plan", mail=("mail",)))
    return desk


def send(desk: LedgerDesk, text: str = "hello", channel: int = PLAN, **fields: Any) -> Any:
    return desk.call(channel, abi.MailSend(**{"to": "mail", "text": text, "user": "ana", **fields}))


def receive(desk: LedgerDesk, channel: int = MAIL, **fields: Any) -> Any:
    return desk.call(channel, abi.MailReceive(**{"user": "ana", **fields}))


def ack(desk: LedgerDesk, *ids: str, channel: int = MAIL, **fields: Any) -> Any:
    return desk.call(channel, abi.MailAck(**{"ids": ids, "user": "ana", **fields}))


def test_a_message_says_whom_it_is_from_and_is_gone_when_acknowledged(desk: LedgerDesk) -> None:
    sent = send(desk, about="m1")
    (one,) = receive(desk).mails
    assert (one.id, one.kind, one.from_agent, one.from_user, one.text, one.about, one.again) == (
        sent.id, "mail", "plan", "ana", "hello", "m1", False
    )  # fmt: skip
    assert one.at > 0
    assert ack(desk, one.id).boxes == ()
    assert receive(desk).mails == ()


def test_a_send_waits_until_it_is_durable(desk: LedgerDesk) -> None:
    desk.hold = True
    assert send(desk) is None
    desk.settle()
    assert desk.word().fresh


def test_the_same_key_is_one_message(desk: LedgerDesk) -> None:
    first, second = send(desk, key="k"), send(desk, key="k")
    assert (first.fresh, second.fresh, second.id) == (True, False, first.id)
    assert len(receive(desk).mails) == 1
    ack(desk, first.id)
    assert send(desk, key="k").id == first.id
    assert receive(desk).mails == ()
    refused = send(desk, "other words", key="k")
    assert (refused.errno, refused.field) == (Errno.EINVAL, "key")


def test_only_under_a_grant_of_mail(desk: LedgerDesk) -> None:
    refused = send(desk, channel=MAIL, to="plan")
    assert (refused.errno, refused.field) == (Errno.EPERM, "to")
    desk.ask(OPERATOR, m.Grant(agent="mail", mail=("*",)))
    assert send(desk, channel=MAIL, to="plan").fresh
    assert send(desk, channel=OPERATOR, to="plan").fresh


def test_each_may_write_to_itself(desk: LedgerDesk) -> None:
    assert send(desk, channel=MAIL, to="mail").fresh


def test_to_another_users_pair_only_where_the_sender_may_serve_that_user(
    desk: LedgerDesk,
) -> None:
    refused = send(desk, to_user="bob")
    assert (refused.errno, refused.field) == (Errno.EPERM, "to_user")
    assert send(desk, to_user="bob", channel=MAIL).fresh
    (one,) = receive(desk, user="bob").mails
    assert one.from_user == "ana"


def test_only_the_pair_reads_its_box(desk: LedgerDesk) -> None:
    sent = send(desk)
    assert receive(desk, user="bob").mails == ()
    assert receive(desk, PLAN).mails == ()
    assert receive(desk, PLAN, user="bob").errno == Errno.EPERM
    ack(desk, sent.id, channel=PLAN)
    ack(desk, sent.id, user="bob")
    assert [one.id for one in receive(desk).mails] == [sent.id]


def test_what_an_agent_sends_for_itself_goes_to_the_other_itself(desk: LedgerDesk) -> None:
    send(desk, user=None)
    (one,) = receive(desk, user=own_user("mail")).mails
    assert one.from_user == own_user("plan")


def test_what_is_out_is_not_given_twice_before_its_lease_ends(desk: LedgerDesk) -> None:
    sent = send(desk)
    desk.attach(9, "mail")
    assert [one.id for one in receive(desk, lease_ms=5000).mails] == [sent.id]
    assert receive(desk, 9).mails == ()
    desk.sleep(5001 * MS)
    (again,) = receive(desk, 9).mails
    assert (again.id, again.again) == (sent.id, True)


def test_what_a_channel_did_not_acknowledge_comes_again_when_it_ends(desk: LedgerDesk) -> None:
    sent = send(desk)
    desk.attach(9, "mail")
    receive(desk, 9)
    assert receive(desk).mails == ()
    desk.tell(ev.Detached, channel=9, why="gone")
    (again,) = receive(desk).mails
    assert (again.id, again.again) == (sent.id, True)


def test_after_a_restart_all_that_was_not_acknowledged_comes_again(tables: Tables) -> None:
    desk = granted(tables)
    one, two = send(desk), send(desk)
    ack(desk, *[mail.id for mail in receive(desk, limit=1).mails])
    assert [mail.id for mail in receive(granted(tables)).mails] == [two.id]
    assert one.id != two.id


def test_a_receive_waits_for_mail(desk: LedgerDesk) -> None:
    assert receive(desk, wait_ms=5000) is None
    frame = desk.frame
    sent = send(desk)
    assert [one.id for one in desk.word(frame).mails] == [sent.id]


def test_a_wait_ends_with_nothing(desk: LedgerDesk) -> None:
    assert receive(desk, wait_ms=5000) is None
    desk.said = []
    desk.sleep(4990 * MS)
    assert desk.word() is None
    desk.sleep(20 * MS)
    assert desk.word().mails == ()


def test_a_wait_ends_before_the_calls_deadline(desk: LedgerDesk) -> None:
    receive(desk, wait_ms=60_000, deadline_ms=2000)
    desk.said = []
    desk.sleep(2001 * MS)
    assert desk.word().mails == ()


def test_those_who_wait_are_served_in_order_one_message_each(desk: LedgerDesk) -> None:
    frames = []
    for channel in (MAIL, 9, 10):
        if channel != MAIL:
            desk.attach(channel, "mail")
        receive(desk, channel, wait_ms=5000)
        frames.append(desk.frame)
    desk.said = []
    texts = []
    for n in range(2):
        send(desk, f"text {n}")
        texts += [desk.word(frame).mails[0].text for frame in frames if desk.word(frame)]
    assert texts == ["text 0", "text 1"]
    assert len(desk.state.mail) == 1


def test_a_free_message_goes_to_who_waits(desk: LedgerDesk) -> None:
    sent = send(desk)
    desk.attach(9, "mail")
    receive(desk, 9, lease_ms=2000)
    receive(desk, wait_ms=60_000)
    desk.said = []
    desk.sleep(2001 * MS)
    assert [one.id for one in desk.word().mails] == [sent.id]


def test_a_full_box_is_eagain_with_a_time(desk: LedgerDesk) -> None:
    for _ in range(MAX_MAIL_BYTES // 65_536):
        send(desk, "x" * 65_536)
    refused = send(desk)
    assert (refused.errno, refused.field) == (Errno.EAGAIN, "to")
    assert refused.retry_at > desk.state.calendar()
    (box,) = desk.call(OPERATOR, abi.MailList()).boxes
    assert (box.messages, box.bytes, box.most) == (64, MAX_MAIL_BYTES, MAX_MAIL)


def test_a_send_waits_for_room_and_those_who_come_later_wait_behind(desk: LedgerDesk) -> None:
    for _ in range(MAX_MAIL):
        last = send(desk, "x")
    frames = []
    for text in ("first", "second"):
        assert send(desk, text, wait=True) is None
        frames.append(desk.frame)
    assert send(desk, "hasty").errno == Errno.EAGAIN
    desk.said = []
    receive(desk, limit=1)
    (one,) = desk.word().mails
    ack(desk, one.id)
    assert desk.word(frames[0]).fresh
    assert desk.word(frames[1]) is None
    ack(desk, last.id)
    assert desk.word(frames[1]).fresh


def test_a_send_that_waits_in_vain_is_not_sent(desk: LedgerDesk) -> None:
    for _ in range(MAX_MAIL):
        last = send(desk, "x")
    send(desk, "late", wait=True, deadline_ms=1000)
    desk.said = []
    desk.sleep(SECOND)
    assert desk.word().errno == Errno.ETIMEDOUT
    box = ack(desk, last.id).boxes[0]
    assert box.messages == MAX_MAIL - 1


def test_what_is_out_is_bounded(desk: LedgerDesk) -> None:
    for _ in range(LEASES + 1):
        send(desk, "x")
    while True:
        got = receive(desk, limit=64)
        if isinstance(got, m.Failed):
            break
    assert got.errno == Errno.EAGAIN
    assert len(desk.state.mail._boxes["mail", "ana"].leases) == LEASES


def test_a_reply_holds_what_fits_a_frame(desk: LedgerDesk) -> None:
    for _ in range(20):
        send(desk, "x" * 65_536)
    got = receive(desk, limit=64)
    assert (len(got.mails), got.left) == (8, 12)


def test_secrets_do_not_go_by_mail(desk: LedgerDesk) -> None:
    sent = send(desk, "card 4111 1111 1111 1111")
    assert sent.secrets
    assert "4111 1111" not in receive(desk).mails[0].text


def test_a_forgotten_user_is_in_no_box_and_nobody_waits_to_write_to_it(desk: LedgerDesk) -> None:
    for _ in range(MAX_MAIL):
        send(desk, "x")
    send(desk, "late", wait=True)
    desk.said = []
    desk.tell(ev.Purged, key=0, user="ana", outcomes=())
    assert desk.word().errno == Errno.ENOENT
    assert desk.state.mail._boxes == {}


def test_a_disk_that_refuses_loses_no_message(desk: LedgerDesk, tables: Tables) -> None:
    tables.broken = True
    assert send(desk, key="k").errno == Errno.ENOSPC
    tables.broken = False
    sent = send(desk, key="k")
    assert sent.fresh
    receive(desk)
    tables.broken = True
    assert ack(desk, sent.id).errno == Errno.ENOSPC
    tables.broken = False
    desk.sleep(61 * SECOND)
    assert [one.id for one in receive(desk).mails] == [sent.id]


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (abi.MailSend(to="", text="x"), "to"), (abi.MailSend(to="mail", text=" "), "text"),
        (abi.MailSend(to="mail", text="x" * 70_000), "text"),
        (abi.MailSend(to="mail", text="x", about="a" * 129), "about"),
        (abi.MailSend(to="mail", text="x", key="a\nb"), "key"),
        (abi.MailReceive(limit=0), "limit"), (abi.MailReceive(wait_ms=-1), "wait_ms"),
        (abi.MailReceive(lease_ms=1), "lease_ms"), (abi.MailAck(ids=()), "ids"),
        (abi.MailAck(ids=("a/b",)), "ids"),
    ],
)  # fmt: skip
def test_bad_fields_are_named(desk: LedgerDesk, request_: m.Request, field: str) -> None:
    assert desk.call(PLAN, request_).field == field
