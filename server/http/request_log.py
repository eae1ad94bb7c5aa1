"""An id for each request, and log lines as JSON: one for each request that is answered, with its id."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import uuid
from datetime import UTC, datetime

from flask import Flask, Response, g, has_request_context, request

REQUEST_ID = "X-Request-Id"
_log = logging.getLogger("pathweave.requests")
_IS_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


def identify_requests(app: Flask) -> None:
    """Give each request of ``app`` an id, that of a proxy where it sent one, and log it once it is answered.

    The id is in the reply's header, and in every log line that the request causes. Paths are logged, queries, bodies
    and tokens are not.
    """

    def begin() -> None:
        sent = request.headers.get(REQUEST_ID, "")
        g.request_id = sent if _IS_ID.fullmatch(sent) else uuid.uuid4().hex
        g.received_s = time.perf_counter()

    def end(reply: Response) -> Response:
        reply.headers[REQUEST_ID] = g.request_id
        if _log.isEnabledFor(logging.INFO):
            client = g.get("client")
            told = {
                "method": request.method,
                "path": request.path,
                "status": reply.status_code,
                "ms": round(1e3 * (time.perf_counter() - g.received_s), 3),
                "client": None if client is None else client.name,
            }
            _log.info("%s %s %d", request.method, request.path, reply.status_code, extra={"told": told})
        return reply

    app.before_request_funcs.setdefault(None, []).insert(0, begin)
    app.after_request(end)


class JsonLines(logging.Formatter):
    """Formats records as JSON, one line each: time, level, logger, message, the request's id, and what is known."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        told = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if has_request_context() and "request_id" in g:
            told["request_id"] = g.request_id
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told | getattr(record, "told", {}), ensure_ascii=False)


def log_as_json() -> None:
    """Log JSON lines to standard error: warnings of all parts, and every request."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    _log.setLevel(logging.INFO)
