from isovist.syscalls.client import connect

with connect() as k:
    me = k.whoami().agent
    sent = k.send(me, "the oven is on", key="oven")
    again = k.send(me, "the oven is on", key="oven")
    print("one message" if sent.id == again.id and not again.fresh else "two")
    for message in k.receive(wait=5):
        print(f"{message.from_agent}: {message.text}")
        k.ack(message)
