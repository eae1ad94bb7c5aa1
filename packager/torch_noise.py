"""Keeping exporters and converters quiet: they log, warn and print whole graphs, where we say one line."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import warnings
from collections.abc import Iterator

_LOGGERS = ("torch", "torch.onnx", "root")  # ONNX Runtime's tools log to the root


class _Sink(io.StringIO):
    """Swallows what is printed; rich's progress bars go on to the stream that it stands for."""

    def __init__(self, stream: object) -> None:
        super().__init__()
        self.rich_proxied_file = getattr(stream, "rich_proxied_file", stream)


@contextlib.contextmanager
def torch_silenced() -> Iterator[None]:
    """While open, what torch and such tools log, warn about and print is dropped. Exceptions pass."""
    levels = {name: logging.getLogger(name).level for name in _LOGGERS}
    handler = logging.NullHandler()
    logging.getLogger().addHandler(handler)  # a root without one would get one for good by being logged to
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
