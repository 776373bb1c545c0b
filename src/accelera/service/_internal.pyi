from .client import JobStatus as JobStatus
from .client import PastRun as PastRun
from .client import TraceRecord as TraceRecord
from .database import sqlite_url as sqlite_url
from .server import serve as serve
from .settings import USUAL as USUAL
from .settings import read_limits as read_limits
from .settings import read_token as read_token
