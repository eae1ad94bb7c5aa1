"""Silencing exporters and converters, which log, warn and print whole graphs."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import warnings
from collections.abc import Iterator

_LOGGERS = ("torch", "torch.onnx", "root")  # ONNX Runtime's tools log to the root


class _Sink(io.StringIO):
    """Discards printed text. rich's progress bars are passed on to the replaced stream."""

    def __init__(self, stream: object) -> None:
        super().__init__()
        self.rich_proxied_file = getattr(stream, "rich_proxied_file", stream)


@contextlib.contextmanager
def torch_silenced() -> Iterator[None]:
    """Inside the context, log records, warnings and output of torch and its tools are dropped. Exceptions pass."""
    levels = {name: logging.getLogger(name).level for name in _LOGGERS}
    handler = logging.NullHandler()
    logging.getLogger().addHandler(handler)  # without a handler, logging would add one to the root permanently
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(_Sink(sys.stdout)),
            contextlib.redirect_stderr(_Sink(sys.stderr)),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.getLogger().removeHandler(handler)
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
