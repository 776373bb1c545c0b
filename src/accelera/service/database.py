"""Database of the service: traces, jobs and the history of runs, in SQLite or PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import (
    JSON,
    BigInteger,
    Engine,
    Float,
    ForeignKey,
    Index,
    LargeBinary,
    String,
    Text,
    create_engine,
    event,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError as UrlError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from accelera.errors import ArgumentError
from accelera.service.settings import USUAL, ServiceLimits

BUSY_S = 30
"""Seconds that a writer waits for another writer in SQLite."""


class Base(DeclarativeBase):
    """All tables; times are seconds since 1970, as the service's clock says."""


class StoredTrace(Base):
    """A trace, once per content."""

    __tablename__ = "traces"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    """SHA-256 of the trace's contents, see ``content_hash``."""
    name: Mapped[str] = mapped_column(String(200))
    created_s: Mapped[float] = mapped_column(Float)
    model_type: Mapped[str] = mapped_column(String(100))
    accesses: Mapped[int] = mapped_column(BigInteger)
    buffers: Mapped[int] = mapped_column(BigInteger)
    steps: Mapped[int] = mapped_column(BigInteger)
    footprint_bytes: Mapped[int] = mapped_column(BigInteger)
    parquet: Mapped[bytes] = mapped_column(LargeBinary, deferred=True)


class StoredJob(Base):
    """Work that takes longer than a caller waits, and its result."""

    __tablename__ = "jobs"
    __table_args__ = (
        Index("jobs_by_state", "state", "created_s"),
        Index("jobs_by_digest", "digest", "state"),
    )

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    kind: Mapped[str] = mapped_column(String(40))
    request: Mapped[dict[str, Any]] = mapped_column(JSON)
    digest: Mapped[str | None] = mapped_column(String(64))
    """SHA-256 of kind and request, see ``digest_of``; None for jobs from before this column existed."""
    state: Mapped[str] = mapped_column(String(12))
    """``queued``, ``running``, ``done``, ``failed``, ``cancelled`` or ``interrupted``."""
    created_s: Mapped[float] = mapped_column(Float)
    finished_s: Mapped[float | None] = mapped_column(Float)
    worker: Mapped[str | None] = mapped_column(String(64))
    lease_until_s: Mapped[float | None] = mapped_column(Float)
    """Time at which the lease lapses: its worker is then taken to be dead."""
    attempt: Mapped[int] = mapped_column(default=0)
    cancelling: Mapped[bool] = mapped_column(default=False)
    progress: Mapped[float] = mapped_column(Float, default=0.0)
    """From 0 to 1."""
    doing: Mapped[str] = mapped_column(String(200), default="")
    sequence: Mapped[int] = mapped_column(default=0)
    """Grows with every change that watchers receive."""
    result: Mapped[bytes | None] = mapped_column(LargeBinary, deferred=True)
    """JSON."""
    error: Mapped[str | None] = mapped_column(Text)


class StoredRun(Base):
    """A simulation or an analysis that was kept, with the request that opens it again."""

    __tablename__ = "runs"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    kind: Mapped[str] = mapped_column(String(40))
    title: Mapped[str] = mapped_column(String(200))
    headline: Mapped[str] = mapped_column(String(500), default="")
    """The answer in a sentence."""
    created_s: Mapped[float] = mapped_column(Float, index=True)
    request: Mapped[dict[str, Any]] = mapped_column(JSON)
    figures: Mapped[dict[str, Any]] = mapped_column(JSON)
    trace: Mapped[str | None] = mapped_column(ForeignKey("traces.digest", ondelete="SET NULL"))
    job: Mapped[str | None] = mapped_column(String(32))
    """The job that found it, which may be deleted since."""


class Database:
    """A database at an SQLAlchemy URL, brought to the present schema when it is opened.

    ``sqlite:///FILE`` and ``postgresql+psycopg://…`` are known. Without ``migrate`` its schema is taken to be
    the present one. ``limits`` says how much it may hold. Raises ArgumentError for another URL.
    """

    def __init__(self, url: str, *, migrate: bool = True, limits: ServiceLimits = USUAL) -> None:
        self.url = checked_url(url)
        self.limits = limits
        self.engine = _engine(self.url)
        if migrate:
            _migrate(self.engine)

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Open a session in one transaction, which commits at the end and rolls back on an error."""
        with Session(self.engine, expire_on_commit=False) as session, session.begin():
            yield session

    @property
    def is_postgresql(self) -> bool:
        """Whether the database is PostgreSQL, where a claim can skip rows that other workers have locked."""
        return self.engine.dialect.name == "postgresql"

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def sqlite_url(path: Path) -> str:
    """Return the URL of an SQLite file."""
    return f"sqlite:///{path.resolve()}"


def checked_url(url: str) -> str:
    """Return ``url`` with the driver that is used; raises ArgumentError for what is no known database."""
    try:
        parsed = make_url(url)
    except UrlError as error:
        raise ArgumentError(
            "[serve] the database's URL cannot be read; write sqlite:///FILE or postgresql://USER@HOST/NAME"
        ) from error
    kind = parsed.get_backend_name()
    if kind == "postgresql":
        return parsed.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
    if kind != "sqlite":
        raise ArgumentError(f"[serve] a database of the kind {kind!r}; sqlite and postgresql are known")
    return parsed.render_as_string(hide_password=False)


def _engine(url: str) -> Engine:
    if not url.startswith("sqlite"):
        return create_engine(url, pool_pre_ping=True)
    engine = create_engine(url, connect_args={"timeout": BUSY_S})

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # this module begins transactions, not the driver
        cursor = connection.cursor()
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql(
            "BEGIN IMMEDIATE"
        )  # a transaction that reads first and then writes could fail

    return engine


def _migrate(engine: Engine) -> None:
    with (
        resources.as_file(resources.files("accelera.service") / "migrations") as folder,
        engine.begin() as connection,
    ):
        config = Config()
        config.set_main_option("script_location", str(folder).replace("%", "%%"))
        config.attributes["connection"] = connection
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(73541)")  # replicas start together
        command.upgrade(config, "head")
