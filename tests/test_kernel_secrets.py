"""No secret reaches a file of the store, by whatever way it came (promise ``secrets.never``)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kernel_helpers import client, running, short_folder

from isovist.syscalls.errors import Errno, IsovistError

# Made up, and of a form that each provider documents.
AWS = "AKIA" + "Q3EGVN7YD2XKJ5RT"
GITHUB = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
PASSWORD = "hunter2-Correct-Horse"
SSN = "536-90-4399"
SECRETS = (AWS, GITHUB, PASSWORD, SSN)


def held(folder: Path) -> dict[str, list[str]]:
    """Which secret stands in which files below ``folder``, in whatever part."""
    found: dict[str, list[str]] = {}
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes().lower()
            for secret in SECRETS:
                if secret.lower().encode() in data:
                    found.setdefault(secret, []).append(path.name)
    return found


def test_the_search_finds_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_text(f"x{AWS}y {SSN}")
    assert set(held(tmp_path)) == {AWS, SSN}


@pytest.mark.promise("secrets.never")
async def test_no_door_of_memory_lets_a_secret_through_to_any_file() -> None:
    with short_folder() as folder:
        state = Path(folder)
        async with (
            running(state) as kernel,
            client(kernel, "operator", operator=True) as boss,
            client(kernel, "mail", user="ana") as mail,
        ):
            await boss.grant("mail", users=("ana",))
            stored = await mail.remember(f"The key is {AWS}, my SSN is {SSN}.", session="s1")
            assert sum(stored.secrets.values()) == 2
            assert (await mail.read(stored.id)).units[0].text.count("[") == 2
            new = await mail.update(stored.id, stored.version, f"The token is {GITHUB}")
            assert sum(new.secrets.values()) == 1
            labels = {"password": PASSWORD, "note": f"use {GITHUB}"}
            labelled = await mail.remember("The labels hold it.", meta=labels)
            assert sum(labelled.secrets.values()) == 2
            said = await mail.chat(f"My password is {PASSWORD}", keep=True, session="s1")
            assert said.kept
            assert sum(said.secrets.values()) >= 1
            (line, *_) = [line async for line in boss.export("ana")]
            foreign = json.loads(line) | {
                "id": "u" + "0" * 20,
                "text": f"From elsewhere: {AWS}",
                "meta": {"api_key": GITHUB},
            }
            taken = await boss.import_([json.dumps(foreign)])
            assert (taken.stored, taken.failed) == (1, ())
            assert sum(taken.secrets.values()) == 2
            # A question is no memory, and is not kept as one.
            await mail.search(f"what is {AWS} for?")
            await boss.backup(str(state / "copy.db"))
        assert held(state) == {}
        # And what was replaced in it is gone from what a later life gives out.
        async with (
            running(state) as kernel,
            client(kernel, "operator", operator=True) as boss,
        ):
            everything = "\n".join([line async for line in boss.export()])
            assert not [secret for secret in SECRETS if secret in everything]
            assert everything.count("[secret:") >= 5


@pytest.mark.promise("secrets.never")
async def test_the_same_secret_told_again_is_the_same_memory() -> None:
    with short_folder() as folder:
        async with running(Path(folder)) as kernel, client(kernel, "mail") as mail:
            first = await mail.remember(f"The key is {AWS}")
            again = await mail.remember(f"The key is {AWS}")
            assert (again.id, again.duplicate) == (first.id, True)
            assert again.secrets == first.secrets
            with pytest.raises(IsovistError) as refused:
                await mail.update(first.id, 7, f"The token is {GITHUB}")
            assert refused.value.errno is Errno.ESTALE
            assert GITHUB not in str(refused.value)
        assert held(Path(folder)) == {}
