from isovist.syscalls.client import connect

with connect() as k:
    for _ in range(2):
        begun = k.effect_begin("pay the baker", "5 coins", key="bread of Monday")
        if begun.fresh:
            # Here the coins change hands. Nothing else decides whether they do.
            k.effect_done(begun.effect.id, "receipt 7")
            print("paid")
        elif begun.effect.result is not None:
            print(f"already {begun.effect.state}: {begun.effect.result.text}")
