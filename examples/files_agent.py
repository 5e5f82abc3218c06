"""Write a file twice, find it, roll it back, and see who did what and why."""

from isovist.agents import connect


def main() -> None:
    with connect() as k:
        k.file_write("notes/plan.md", "The locker is number 4417.", reason="a first draft")
        k.file_write("notes/plan.md", "The locker is number 5000.", expect=1)
        print([(hit.path, hit.version) for hit in k.file_search("locker 5000", mode="bm25").files])
        k.file_rollback("notes/plan.md", 1, reason="it was right")
        print(k.file_read("notes/plan.md").body.decode())
        for one in k.file_log("notes/plan.md").versions:
            print(one.version, one.action, one.agent, one.reason)


main()
