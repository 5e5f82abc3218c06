from isovist.syscalls.client import connect

with connect() as k:
    k.timer_every(1, "look at the oven", name="oven")
    k.timer_cron("30 9 * * MON", "plan the week", zone="Europe/Berlin", name="week")
    (first, *_) = k.receive(wait=10)
    print(f"{first.kind}: {first.text}")
    k.ack(first)
    for timer in k.timers():
        print(timer.when, timer.zone)
        k.timer_cancel(timer.id)
