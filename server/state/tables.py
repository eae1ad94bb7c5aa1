"""The tables of a server's database, as SQLAlchemy Core sees them; migrations make them."""

from __future__ import annotations

import sqlalchemy as sa

# SQLite's strict tables know five types.
Number: sa.types.TypeEngine[int] = sa.BigInteger().with_variant(sa.Integer, "sqlite")
Real: sa.types.TypeEngine[float] = sa.Double().with_variant(sa.REAL, "sqlite")

METADATA = sa.MetaData()


def _table(name: str, *parts: sa.schema.SchemaItem) -> sa.Table:
    return sa.Table(name, METADATA, *parts, sqlite_strict=True)


TOKENS = _table(
    "tokens",
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("hash", sa.LargeBinary, nullable=False, unique=True),  # sha256 of the token, which is not stored
    sa.Column("created", sa.Text, nullable=False),
    sa.Column("expires", sa.Text, nullable=False),
    sa.Column("revoked", sa.Integer, nullable=False, server_default="0"),
    sa.Column("scope", sa.Text, nullable=False, server_default="device"),
    sa.Column("device", sa.Text),  # whose log lines it may send; NULL: not bound
)
ENROLMENT_CODES = _table(
    "enrolment_codes",
    sa.Column("hash", sa.LargeBinary, primary_key=True),  # sha256 of the code, which is not stored
    sa.Column("device", sa.Text),  # that it enrols; NULL: any new one
    sa.Column("days", Real, nullable=False),  # validity of the token
    sa.Column("created", sa.Text, nullable=False),
    sa.Column("expires", sa.Text, nullable=False),
    sa.Column("used", sa.Text),  # when it was exchanged
)
LOG_LINES = _table(
    "log_lines",
    sa.Column("id", Number, primary_key=True),  # order of arrival
    sa.Column("device", sa.Text, nullable=False),
    sa.Column("digest", sa.LargeBinary, nullable=False),  # sha256 of the line as received
    sa.Column("time", sa.Text, nullable=False),  # timestamp of the line, in UTC
    sa.Column("received", sa.Text, nullable=False),
    sa.Column("event", sa.Text, nullable=False),
    sa.Column("line", sa.LargeBinary, nullable=False),
    sa.UniqueConstraint("device", "digest"),
    sa.Index("log_lines_by_device", "device", "event", "time"),
    sa.Index("log_lines_by_time", "time"),
    sa.Index("log_lines_by_arrival", "device", "id"),
)
DROPPED_LINES = _table(
    "dropped_lines",
    sa.Column("number", Number, primary_key=True),  # order of arrival
    sa.Column("device", sa.Text, nullable=False),
    sa.Column("digest", sa.LargeBinary, nullable=False),
    sa.UniqueConstraint("device", "digest"),
)
# Also the row that a transaction on one device holds, so that two replicas take turns.
RETENTION = _table(
    "retention",
    sa.Column("device", sa.Text, primary_key=True),
    sa.Column("dropped", Number, nullable=False),  # lines that retention has dropped
)
JOBS = _table(
    "jobs",
    sa.Column("number", Number, primary_key=True),  # order of arrival
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("client", sa.Text, nullable=False),
    sa.Column("request", sa.LargeBinary, nullable=False),  # JSON, checked
    sa.Column("weights_sha256", sa.Text),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("version", sa.Integer),  # of the bundle, set at the first start
    sa.Column("worker", sa.Text),  # pid and start time of its process, while it runs
    sa.Column("digest", sa.Text),  # of the manifest, set just before publishing
    sa.Column("error", sa.Text),
    sa.Column("hint", sa.Text),
    sa.Column("created", sa.Text, nullable=False),
    sa.Column("started", sa.Text),
    sa.Column("finished", sa.Text),
    sa.Column("published_name", sa.Text),
    sa.Column("published_version", sa.Integer),
    sa.Column("published_by", sa.Text),
    sa.Column("published", sa.Text),  # when; the three above are set just before
    sa.Column("priority", sa.Integer, nullable=False, server_default="0"),  # higher ones first
    sa.Column("attempt", sa.Integer, nullable=False, server_default="0"),  # leases so far; the newest alone may write
    sa.Column("lost", sa.Integer, nullable=False, server_default="0"),  # leases in a row that ran out
    sa.Column("owner", sa.Text),  # machine that had or has the lease
    sa.Column("lease_until_s", Real),  # by the database's clock
    sa.Column("progress", sa.Text),  # JSON; this and what follows only where machines share the jobs
    sa.Column("log", sa.Text),  # its end
    sa.Column("checkpoint", sa.Text),  # JSON: the stored files to resume from
    sa.Column("bundle", sa.Text),  # JSON: the stored files of what was made, until it is published
)
JOB_MACHINES = _table(
    "job_machines",
    sa.Column("owner", sa.Text, primary_key=True),
    sa.Column("tags", sa.Text, nullable=False),  # JSON
    sa.Column("data", sa.Text, nullable=False),  # JSON: names of its data sets
    sa.Column("seen_s", Real, nullable=False),  # by the database's clock
)
ENROLMENT_ATTEMPTS = _table(
    "enrolment_attempts",
    sa.Column("address", sa.Text, primary_key=True),  # or the network of one
    sa.Column("began_s", Real, nullable=False),  # start of the window, by the database's clock
    sa.Column("failures", sa.Integer, nullable=False),  # in it
)
SHARE_LEASES = _table(
    "share_leases",
    sa.Column("client", sa.Text, primary_key=True),
    sa.Column("replica", sa.Text, primary_key=True),
    sa.Column("slots", sa.Integer, nullable=False),  # requests that the replica may run for the client at once
    sa.Column("expires_s", Real, nullable=False),  # by the database's clock
)
# A row for each bundle of a device, from its first question or line on: whom a stage of a rollout would reach, with
# which version, and what they measured on it. Of the fleet as a whole, whatever it runs: ``fleet_devices``.
BUNDLE_DEVICES = _table(
    "bundle_devices",
    sa.Column("bundle", sa.Text, primary_key=True),
    sa.Column("device", sa.Text, primary_key=True),
    sa.Column("tags", sa.Text, nullable=False),  # as in the header that they came in
    sa.Column("version", Number),  # of this bundle, as the lines that came last say; NULL: no line of a served one came
    sa.Column("measured", sa.LargeBinary, nullable=False),  # JSON: the latest values on that version
    sa.Column("seen", sa.Text, nullable=False),  # the day of its last request or lines
)
ROLLOUTS = _table(
    "rollouts",
    sa.Column("number", Number, primary_key=True, autoincrement=False),
    sa.Column("bundle", sa.Text, nullable=False),
    sa.Column("active", sa.Text, unique=True),  # the bundle while it may still change: one at a time; NULL: it is over
    sa.Column("version", Number, nullable=False),
    sa.Column("baseline", Number, nullable=False),  # the version that it replaces
    sa.Column("plan", sa.LargeBinary, nullable=False),  # JSON, checked
    sa.Column("salt", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("stage", sa.Integer, nullable=False),
    sa.Column("since", sa.Text, nullable=False),  # start of the stage
    sa.Column("started", sa.Text, nullable=False),
    sa.Column("started_by", sa.Text, nullable=False),
    sa.Column("why", sa.Text, nullable=False),
    sa.Column("revision", Number, nullable=False),  # rises with every change; changes compare it
    sa.Index("rollouts_by_bundle", "bundle", "number"),
)
ROLLOUT_DEVICES = _table(
    "rollout_devices",
    sa.Column("rollout", Number, primary_key=True, autoincrement=False),
    sa.Column("device", sa.Text, primary_key=True),
    sa.Column("version", Number, nullable=False),  # that it got, or has
    sa.Column("stage", sa.Integer),  # that added it; NULL: none, it is compared with
    sa.Column("installed", Number),  # the version that its lines named last
    sa.Column("member", sa.LargeBinary, nullable=False),  # JSON: what it reported
    sa.Index("rollout_devices_by_version", "rollout", "version", "stage", "installed"),
)
ROLLOUT_COUNTS = _table(
    "rollout_counts",
    sa.Column("rollout", Number, primary_key=True, autoincrement=False),
    sa.Column("version", Number, primary_key=True, autoincrement=False),
    sa.Column("tag", sa.Text, primary_key=True),  # NAME=VALUE; empty: all devices
    sa.Column("signal", sa.Text, primary_key=True),
    sa.Column("devices", Number, nullable=False),
    sa.Column("events", Number, nullable=False),
    sa.Column("total", Real, nullable=False),
    sa.Column("squares", Real, nullable=False),
)
# The fleet as its log lines tell, a row for each device: what ``server/fleet`` keeps, and page and metrics read. Its
# version of one bundle, for rollouts: ``bundle_devices``.
FLEET_DEVICES = _table(
    "fleet_devices",
    sa.Column("device", sa.Text, primary_key=True),
    sa.Column("first_seen", sa.Text, nullable=False),
    sa.Column("last_seen", sa.Text, nullable=False),  # reception of its last new line
    sa.Column("lines", Number, nullable=False),  # accepted so far
    sa.Column("line_time", sa.Text, nullable=False),  # of its newest line, which names bundle and runtime
    sa.Column("bundle", sa.Text, nullable=False),  # digest of any manifest, served or not
    sa.Column("runtime", sa.Text, nullable=False),
    sa.Column("plan_time", sa.Text),  # of the line that chose the plan
    sa.Column("plan_kind", sa.Text),
    sa.Column("latency_ms", Real),
    sa.Column("budget_ms", Real),
    sa.Column("budget_use", Real),  # latency over budget
    sa.Column("share_asked", Real),
    sa.Column("subnet_time", sa.Text),
    sa.Column("subnet", sa.Text),
    sa.Column("failure_time", sa.Text),  # of its latest failure
    sa.Column("failure", sa.Text),  # its kind
    sa.Column("failure_text", sa.Text),
    sa.Index("fleet_devices_by_last_seen", "last_seen", "device"),
    sa.Index("fleet_devices_by_bundle", "bundle", "last_seen", "device"),
    sa.Index("fleet_devices_by_plan", "plan_kind", "last_seen", "device"),
    sa.Index("fleet_devices_by_latency", "latency_ms", "device"),
    sa.Index("fleet_devices_by_budget", "budget_use", "device"),
    sa.Index("fleet_devices_by_share", "share_asked", "device"),
    sa.Index("fleet_devices_by_failure", "failure_time", "device"),
)
# The hours of a day at which a device was seen, over its budget, or failed: one bit each.
FLEET_DEVICE_DAYS = _table(
    "fleet_device_days",
    sa.Column("device", sa.Text, primary_key=True),
    sa.Column("day", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("hours", sa.Integer, nullable=False),
)
# Devices in each hour and day, counted once. Rows are split by device, so that uploads seldom wait for each other.
FLEET_PERIODS = _table(
    "fleet_periods",
    sa.Column("unit", sa.Text, primary_key=True),
    sa.Column("period", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("part", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("devices", Number, nullable=False),
)
