"""Service with small limits, whose answers come soon: ``python -m tests.service.limited_server``."""

from __future__ import annotations

import sys
from pathlib import Path

from accelera.service import ServiceLimits, ServiceSettings
from accelera.service.database import sqlite_url
from accelera.service.server import serve

LIMITS = ServiceLimits(
    accesses=20_000, quick_accesses=5_000, job_s=2.0, stored_accesses=100_000, upload_bytes=1 << 22
)

if __name__ == "__main__":
    database = sqlite_url(Path(sys.argv[1]))
    serve(
        ServiceSettings(database_url=database, limits=LIMITS, workers=2), lambda url: print(url, flush=True)
    )
