"""The demo's report page. Its pictures are in ``pictures``."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from device_sdk.supernet.blocks import kind_named
from device_sdk.supernet.paths import subnet_count
from device_sdk.supernet.supernet import Supernet
from pathweave.demo.devices import DeviceResult
from pathweave.demo.elastic import DeadlineRow, ElasticResult, MemoryRow
from pathweave.demo.extras import UPLINK_MBPS, JobResult, SplitResult
from pathweave.demo.pictures import (
    accuracy_latency_picture,
    answers_picture,
    class_mix_picture,
    supernet_picture,
)
from pathweave.page import page, table

STYLE = """
:root { --device0: #2a6fc9; --device1: #c2571a; --device2: #14855f; --shade: #eef1f4; }
@media (prefers-color-scheme: dark) {
  :root { --device0: #6ca4f0; --device1: #ee9560; --device2: #43c194; --shade: #1d242c; }
}
.device0 { --device: var(--device0); } .device1 { --device: var(--device1); } .device2 { --device: var(--device2); }
h1 { margin-bottom: .3rem; }
h2 { margin-bottom: .2rem; }
p { max-width: 48rem; }
svg { max-width: 100%; height: auto; }
td svg { vertical-align: middle; }
td.path { white-space: normal; min-width: 9rem; }
code { font: inherit; white-space: nowrap; }
td b { color: var(--device); }
svg text { font: 12px system-ui, sans-serif; fill: var(--soft); }
svg .strong { font-weight: 600; fill: var(--device, var(--ink)); }
svg .heading { font-size: 15px; }
.grid { stroke: var(--line); }
.axis { stroke: var(--soft); }
.over { fill: var(--shade); }
.limit { stroke: var(--device); stroke-width: 1.5; stroke-dasharray: 5 4; }
.dot { fill: var(--device); fill-opacity: .28; }
.dot.beyond { fill: var(--soft); fill-opacity: .22; }
.chosen { fill: var(--device); stroke: var(--paper); stroke-width: 2; }
.full { fill: var(--ink); stroke: var(--paper); stroke-width: 1.5; }
.edge { fill: none; stroke: var(--line); stroke-width: 1.5; }
.taken { fill: none; stroke: var(--device); stroke-width: 4; stroke-linecap: round; }
.cut { fill: var(--paper); stroke: var(--soft); stroke-width: 1.5; }
.cut.passed { fill: var(--device); stroke: var(--device); }
.mix { fill: var(--device); }
.early { fill: var(--device); fill-opacity: .45; }
.end { fill: var(--device); }
.server { fill: var(--ink); fill-opacity: .7; }
svg text.on { fill: var(--paper); paint-order: stroke; }
"""


def render_demo(
    devices: Sequence[DeviceResult],
    *,
    supernet: Supernet,
    full_model_accuracy: float,
    split: SplitResult,
    job: JobResult,
    elastic: ElasticResult,
    seconds: float,
) -> str:
    """The self-contained HTML page."""
    body = f"""<h1>One model, {len(devices)} devices</h1>
<p>{_explanation(devices, supernet, full_model_accuracy)}</p>
<section>
<h2>What each device found</h2>
<p class="soft">Every dot is an evaluated subnet, by its latency relative to the full model and by its accuracy
on samples that the search did not see. The large dot is the chosen subnet, the diamond the full model; the dashed line
is the budget. The accuracy of dots on the lower edge is below the range shown.</p>
{accuracy_latency_picture(devices)}
</section>
<section>
<h2>The chosen paths</h2>
<p class="soft">Dots are cut points, from the input to the output; straight lines are blocks of the full model, arcs are
merged blocks that replace several of them. Hover over a block to see its name.</p>
{supernet_picture(devices, supernet)}
</section>
<section>
<h2>Sources of the answers</h2>
<p class="soft">Confident samples exit early, in the middle of the network (light); the others run to the end of the
device's subnet (full colour); the hardest go to the full model at the server (dark), over HTTP.</p>
{answers_picture(devices)}
</section>
<section>
<h2>Across the network</h2>
<p>{_across(split, job)}</p>
</section>
<section>
<h2>In less time, in less memory</h2>
<p class="soft">The full model with its exits was asked for {elastic.samples} samples again. By a deadline, the last
exit answers that is sure to be in time; a deadline below the first exit is refused. While the memory limit shrinks,
the model runs in pages, and at last it ends with an exit; with more memory it is whole again.</p>
{_deadlines(elastic)}
{_memory(elastic)}
</section>
<section>
<h2>In numbers</h2>
{_numbers(devices)}
<p class="soft">Latencies are medians of single samples on one thread. The whole demo took {seconds:.0f} s.</p>
</section>"""
    return page("Pathweave: demo", body, style=STYLE)


def _explanation(devices: Sequence[DeviceResult], supernet: Supernet, full_model_accuracy: float) -> str:
    merged = sum(kind_named(block.kind).spans == "several" for block in supernet.blocks)
    private, held_back = sum(devices[0].class_mix), devices[0].held_back_samples
    return escape(
        f"A small residual network was trained on scikit-learn's digits ({full_model_accuracy:.1%} right), then"
        f" packaged: {merged} merged blocks were added, each trained to replace a span of its {supernet.output_index}"
        f" blocks, with {len(supernet.exits)} exits beside them, and the {subnet_count(supernet)} subnets that this"
        " gives were signed and served as one bundle."
        f" Each device below downloaded it, drew {private} samples of its own, with its own mix of classes, measured"
        " every block, searched for the most accurate subnet within its budget, set its exits, and was then judged on"
        f" {held_back} other samples of the same mix. {_cuts(devices)}"
    )


def _across(split: SplitResult, job: JobResult) -> str:
    return escape(
        f"Split at cut point {split.position}, the full model ran half on a device and half at the server: over an"
        f" uplink of {UPLINK_MBPS:g} Mbit/s it took {split.measured_ms:.1f} ms ({split.predicted_ms:.1f} ms predicted,"
        f" {split.on_device_ms:.1f} ms on the device alone), {split.bytes_sent:,} bytes were sent per sample, and"
        f" {split.agreement:.0%} of the answers were those of the undivided model. The server also packaged uploaded"
        f" weights by itself, in {job.seconds:.0f} s; a device that opened that bundle was {job.accuracy:.1%} right."
    )


def _deadlines(elastic: ElasticResult) -> str:
    columns = ("deadline", "answered", "right answers", "longest call", "answered by")
    rows = (
        (f"{row.deadline_ms:.2f} ms", row, f"{row.longest_ms:.2f} ms" if row.answered else "")
        for row in elastic.deadlines
    )
    return table(columns, (_elastic_row(*row) for row in rows))


def _memory(elastic: ElasticResult) -> str:
    columns = ("memory limit", "answered", "right answers", "median", "answered by")
    rows = ((f"{row.cap_mb:.1f} MB", row, f"{row.median_ms:.2f} ms") for row in elastic.memory)
    return table(columns, (_elastic_row(*row) for row in rows))


def _elastic_row(limit: str, row: DeadlineRow | MemoryRow, time: str) -> str:
    right = f"{row.right / row.answered:.1%}" if row.answered else ""
    sources = ", ".join(f"{escape(source)} {count}" for source, count in row.sources.items())
    shown = time if row.answered else ""
    cells = "".join(f'<td class="number">{cell}</td>' for cell in (limit, row.answered, right, shown))
    return f"<tr>{cells}<td>{sources}</td></tr>"


def _cuts(devices: Sequence[DeviceResult]) -> str:
    cut = [device for device in devices if device.resumed]
    if not cut:
        return ""
    names = " and ".join(f"{device.name} device" for device in cut)
    return f"The connection of the {names} was dropped during the download, which then resumed."


def _numbers(devices: Sequence[DeviceResult]) -> str:
    latency = ("budget", "predicted", "measured", "speed-up")
    answers = ("right answers", "with the server", "full model")
    columns = ("device", "its classes, 0 to 9", *latency, *answers, "subnets tried", "subnet")
    return table(columns, (_row(number, device) for number, device in enumerate(devices)))


def _row(number: int, device: DeviceResult) -> str:
    figures = (
        f"{device.budget_ms:.3f} ms",
        f"{device.predicted_ms:.3f} ms",
        f"{device.measured_ms:.3f} ms",
        f"{device.full_ms / device.measured_ms:.1f}×",
        f"{device.accuracy_local:.1%}",
        f"{device.accuracy_with_server:.1%}",
        f"{device.full_accuracy_local:.1%}",
        str(device.subnets_evaluated),
    )
    subnet = " ".join(f"<code>{escape(block)}</code>" for block in device.subnet)
    cells = "".join(f'<td class="number">{figure}</td>' for figure in figures)
    return (
        f'<tr class="device{number % 3}"><td><b>{escape(device.name)}</b></td><td>{class_mix_picture(device)}</td>'
        f'{cells}<td class="path">{subnet}</td></tr>'
    )
