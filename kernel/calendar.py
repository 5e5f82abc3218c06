"""When a cron expression is due next, in the zones of the world.

The fields are those of Debian's cron, with names, ``L``, ``LW`` and ``#``; a sixth, in front, has
seconds. Where a zone's clocks skip an hour, a job at a fixed time in it comes right after; where
they repeat one, it comes once.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from isovist.syscalls.errors import CallerError

SECOND = 1_000_000_000


def next_time(expression: str, zone: str, after: int) -> int:
    """The first time (ns since 1970 UTC) that is later than ``after`` and fits ``expression`` in
    ``zone``, an IANA name. Raises :class:`CallerError` naming ``cron`` or ``zone``."""
    began = datetime.fromtimestamp(after // SECOND, UTC).astimezone(_zone(zone))
    try:
        found = next(CronSim(expression, began))
    except CronSimError as e:
        raise CallerError(f"cron is no cron expression: {e}", field="cron") from None
    except (StopIteration, OverflowError):
        raise CallerError("cron never comes to be", field="cron") from None
    return int(found.timestamp()) * SECOND


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (OSError, ValueError):  # not found is a KeyError
        pass
    except KeyError:
        pass
    raise CallerError("zone is no IANA time zone known here", field="zone")
