"""Small requests that keep an estimate of the way to a server up to date while nothing else is sent."""

from __future__ import annotations

from device_sdk.errors import PathweaveError
from device_sdk.offload.link_estimate import LinkEstimate
from device_sdk.offload.remote_calls import default_transport
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.offload.server_facts import probe

_TIMEOUT_S = 1.5
_LARGE_S = 0.2  # that the larger probe may take by the estimate
_LEAST_BYTES, _MOST_BYTES = 500, 32_000


class LinkProbe:
    """Sends two probes of different sizes whenever it is called, and tells ``link`` what they took.

    Raises:
        UsageError: there is no transport for the server's URL.
    """

    def __init__(self, model: RemoteModel, link: LinkEstimate) -> None:
        self._server, self._link = model.server, link
        self._transport = default_transport(model)

    def __call__(self) -> None:
        """Probe once; a failure is told too, and never raised."""
        try:
            for size_bytes in (1, self._large_bytes()):
                seconds = probe(self._transport, self._server, size_bytes, timeout_s=_TIMEOUT_S)
                self._link.record(size_bytes, seconds)
        except PathweaveError:
            self._link.failed()

    def close(self) -> None:
        """Probe no more. Idempotent."""
        self._transport.close()

    def _large_bytes(self) -> int:
        uplink = self._link.uplink
        most = _LEAST_BYTES if uplink is None else int(uplink.mbps * 1e6 / 8 * _LARGE_S)
        return min(max(most, _LEAST_BYTES), _MOST_BYTES)
