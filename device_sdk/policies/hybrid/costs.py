"""Costs of a base and a global network per sample, in one of three resources (Hybrid Eq. 1–2). Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from device_sdk.errors import UsageError
from device_sdk.policies.costs.evidence import Network
from device_sdk.supernet.cost import CostModel, Power, Uplink
from device_sdk.supernet.plan import RemoteRef, Subnet
from device_sdk.supernet.supernet import Supernet

Resource = Literal["macs", "latency_ms", "energy_mj"]


@dataclass(frozen=True)
class HybridCosts:
    """``base``: of a path on the device, for every sample; ``global_``: of one at the server, for each sample sent."""

    resource: Resource
    base: Callable[[Subnet], float]
    global_: Callable[[Subnet], float]


def macs_costs(supernet: Supernet) -> HybridCosts:
    """Multiply-accumulate operations, wherever they run."""

    def macs(path: Subnet) -> float:
        return float(sum(block.macs for _, block in supernet.walk(path)))

    return HybridCosts("macs", macs, macs)


def latency_costs(device: CostModel, server: CostModel, uplink: Uplink, *, input_bytes: int) -> HybridCosts:
    """Milliseconds until the answer: the device's network, then the transfer and the server's network (HI Eq. 3)."""
    transfer_ms = uplink.transfer_ms(input_bytes)
    return HybridCosts("latency_ms", device.latency_ms, lambda path: transfer_ms + server.latency_ms(path))


def energy_costs(
    device: CostModel, server: CostModel, uplink: Uplink, power: Power | None, *, input_bytes: int
) -> HybridCosts:
    """Millijoules of the device: computing, sending, waiting (HI Eq. 4).

    Raises:
        UsageError: the device's power is unknown.
    """
    if power is None:
        raise UsageError("energies are unknown without the device's power")
    sending_mj = power.radio_w * uplink.transfer_ms(input_bytes)
    return HybridCosts(
        "energy_mj",
        lambda path: power.active_w * device.latency_ms(path),
        lambda path: sending_mj + power.waiting_w * server.latency_ms(path),
    )


def asked_cost(resource: Resource, network: Network, server: RemoteRef, power: Power | None) -> float:
    """Cost of sending a sample to a server's model of unknown structure, from the times that ``network`` states.

    Raises:
        UsageError: MACs are limited, which a server does not state of its model; or the device's power is unknown.
    """
    transfer_ms, answer_ms = network.uplink.transfer_ms(network.input_bytes), network.answer_ms[server]
    if resource == "latency_ms":
        return transfer_ms + answer_ms
    if resource == "macs":
        raise UsageError(f"the MACs of {server} are unknown", hint="limit the latency or the energy instead")
    if power is None:
        raise UsageError("energies are unknown without the device's power")
    return power.radio_w * transfer_ms + power.waiting_w * answer_ms
