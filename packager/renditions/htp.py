"""htp: blocks as a phone's NPU, Qualcomm's HTP, takes them (docs/adr/0087-npus-known-when-packaging.md).

A fragment in ONNX's own operators, which the provider compiles on the device: int8 weights, with activations in 8 bits
or 16, or the fp32 fragment, which the NPU computes in half precision. The maker's compiler and emulator say while
packaging which of the nodes it takes, and how far its answers are off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from device_sdk.bundles.runnable import golden_inputs, sample_outputs
from device_sdk.fragments.composition import compose
from device_sdk.progress import Progress
from device_sdk.supernet.blocks import CompiledFor, Golden, Quantization
from packager.exporting.export import ExportedBlocks
from packager.exporting.onnx_exporter import OPSET
from packager.exporting.verification import ABSOLUTE_TOLERANCE, SELF_TEST_BATCH, SELF_TEST_SEED, TorchReference
from packager.npu.child import PROVIDER
from packager.npu.chips import Chip
from packager.npu.compiler import Array, Compiler, Outcome
from packager.renditions.calibration import Calibration, Features, fitted_and_held_back, relative_error
from packager.renditions.int8 import ActivationBits, cut_point_ranges, quantised_part
from packager.renditions.rendition_set import (
    GOLDEN_TOLERANCE,
    MAX_ERROR,
    Judged,
    RenditionSet,
    judged_set,
    notes_on_heads,
    part_model,
    part_stretch,
    parts_of_one_input,
)

NAME = "htp"
ACCEPTABLE_ERROR = 0.01  # above it, the next wider form is tried
EMULATED = 4  # samples that the error is measured on: the emulator takes seconds for a large block
OPSET_16 = 21  # of QuantizeLinear to 16 bits
_CHANGED_IN_21 = "GroupNormalization"  # the one operator of a fragment that means something else from opset 21 on
_FORMS: tuple[ActivationBits | None, ...] = (8, 16, None)  # the narrowest first; None: half precision


@dataclass(frozen=True)
class Tried:
    """One form of a part: its graph, one outcome for each chip, and the error of the least accurate that runs it.

    ``bits``: of its activations; None: half precision.
    """

    bits: ActivationBits | None
    graph: onnx.GraphProto
    outcomes: tuple[Outcome, ...]
    error: float
    golden: Golden | None

    @property
    def form(self) -> str:
        """``8 bits``, ``16 bits`` or ``half precision``."""
        return "half precision" if self.bits is None else f"{self.bits} bits"

    @property
    def share(self) -> float:
        """Share of the nodes that the chip which takes fewest takes."""
        return min(0.0 if one.failure else one.record.share for one in self.outcomes)

    @property
    def record(self) -> tuple[CompiledFor, ...]:
        """One record for each chip; a chip that refuses the whole takes no node."""
        return tuple(_refused_whole(one) if one.failure else one.record for one in self.outcomes)

    def reason(self) -> str:
        """The reasons of the chips that refuse the whole, else the error."""
        refused = [f"{one.record.chip}: {_said(one)}" for one in self.outcomes if one.failure]
        return "; ".join(refused) if refused else f"its error would be {self.error:.2g}"


def make_htp(
    exported: ExportedBlocks,
    calibration: Calibration,
    progress: Progress,
    cache: Path,
    *,
    chips: Sequence[Chip],
    acceptable_error: float = ACCEPTABLE_ERROR,
    make_compiler: Callable[[], Compiler] = Compiler,
) -> RenditionSet:
    """The fragments of all blocks and exits that at least one of ``chips`` takes at least in part.

    1. measure the range of every cut point, as for int8; 2. of each part, compile the narrowest form, and run it in the
    emulator on held-out samples; 3. try wider ones while nodes are refused or the error is large; 4. keep the best.
    A skip is kept as it is. All else that is left out has a note.

    Raises:
        MissingExtraError: the compiler is not installed.
        VerificationError: features are not finite.
    """
    quantization = cut_point_ranges(calibration, progress, name=NAME)
    skips = {block.id for block in exported.expansion.blocks if block.properties.skip}
    judged: dict[str, Judged] = {}
    compiled: dict[str, tuple[CompiledFor, ...]] = {}
    notes: list[str] = []
    opset = OPSET
    with make_compiler() as compiler, progress.task(f"compile {NAME}", len(exported.own)) as task:
        trial = Trial(
            exported, compiler, chips, quantization, batch=calibration.batch, acceptable_error=acceptable_error
        )
        for part, features in parts_with_features(exported, calibration):
            task.note(part)
            if part in skips:
                judged[part] = trial.skip(part, features)
            else:
                best = trial.best(part, features)
                if best.golden is None or best.error > MAX_ERROR:
                    notes.append(f"{part} has no {NAME} rendition: {best.reason()}")
                else:
                    judged[part] = Judged(best.graph, best.error, best.golden)
                    compiled[part] = best.record
                    opset = max(opset, OPSET_16 if best.bits == 16 else OPSET)
            task.advance()
    notes += notes_on_heads(exported, NAME)
    return judged_set(
        NAME,
        exported,
        judged,
        opset=opset,
        notes=tuple(notes),
        compiled=compiled,
        providers=(PROVIDER,),
    )


def parts_with_features(exported: ExportedBlocks, calibration: Calibration) -> Iterator[tuple[str, Features]]:
    """Every block and exit with the features [count, *shape] at its start, in the order of their starts.

    Without heads that read several cut points.
    """
    for index, (features, *_) in calibration.features():
        for part in parts_of_one_input(exported, index):
            yield part, features


class Trial:
    """Tries the forms of one part after another.

    ``quantization``: by cut point. ``batch``: of the calibration. ``acceptable_error``: above it, or while nodes are
    refused, the next wider form is tried.
    """

    def __init__(
        self,
        exported: ExportedBlocks,
        compiler: Compiler,
        chips: Sequence[Chip],
        quantization: Mapping[int, Quantization],
        *,
        batch: int,
        acceptable_error: float = ACCEPTABLE_ERROR,
    ) -> None:
        self._acceptable_error = acceptable_error
        self._exported, self._compiler, self._chips = exported, compiler, tuple(chips)
        self._quantization, self._batch = quantization, batch
        self._reference = TorchReference(exported.expansion)
        self._has_16_bits = not _uses(exported, _CHANGED_IN_21)

    def best(self, part: str, features: Features) -> Tried:
        """The narrowest good form; if none is, the one of which most is taken, then the narrowest or most accurate."""
        tried: list[Tried] = []
        for bits in _FORMS:
            if bits == 16 and not self._has_16_bits:
                continue
            found = self.of(part, features, bits)
            if found is None:
                continue
            if found.share == 1.0 and found.error <= self._acceptable_error:
                return found
            tried.append(found)
        return max(tried, key=lambda one: (one.error <= MAX_ERROR, one.share, -max(one.error, self._acceptable_error)))

    def of(self, part: str, features: Features, bits: ActivationBits | None) -> Tried | None:
        """The form with activations in ``bits``; None if nothing in the part can be quantised."""
        (fitting,), (held_back,) = fitted_and_held_back((features,))
        model = self._model(part, bits)
        if bits is None:
            graph = onnx.GraphProto.FromString(self._exported.own[part])
        elif features.dtype != np.float32:
            return None
        else:
            graph = quantised_part(
                model,
                part,
                [(fitting,)],
                self._quantization,
                batch=self._batch,
                activation_bits=bits,
                reduce_range=False,
            )
            if not any(node.op_type == "QuantizeLinear" for node in graph.node):
                return None
        return self._tried(part, bits, graph, held_back[:EMULATED])

    def skip(self, part: str, features: Features) -> Judged:
        """A skip: its fragment as it is, which no compiler needs to see."""
        golden = [self._reference.answer([part], [self._golden_input(part)])[0]]
        graph = onnx.GraphProto.FromString(self._exported.own[part])
        return Judged(graph, 0.0, Golden(sample_outputs(golden), ABSOLUTE_TOLERANCE))

    def _model(self, part: str, bits: ActivationBits | None) -> onnx.ModelProto:
        model = part_model(self._exported, part)
        if bits == 16:
            model.opset_import[0].version = OPSET_16
        return model

    def _tried(self, part: str, bits: ActivationBits | None, graph: onnx.GraphProto, samples: Features) -> Tried:
        stretch = part_stretch(self._exported, part, None if bits is None else graph)
        model = compose(replace(stretch, opset=OPSET_16) if bits == 16 else stretch)
        inputs = np.concatenate([samples, self._golden_input(part)])
        outcomes = tuple(self._compiler.compiled(model, chip, inputs) for chip in self._chips)
        expected = self._reference.answer([part], [inputs])[0]
        ran = [one.answers for one in outcomes if one.answers is not None]
        if not ran:
            return Tried(bits, graph, outcomes, float("inf"), None)
        count = len(samples)
        errors = [relative_error(answers[:count], expected[:count]) for answers in ran]
        worst = max(errors) if np.isfinite(errors).all() else float("inf")
        return Tried(bits, graph, outcomes, worst, _golden(ran, expected, count) if np.isfinite(worst) else None)

    def _golden_input(self, part: str) -> Array:
        cut = self._exported.expansion.cut_points[self._reference.starts[part]]
        return golden_inputs(cut, seed=SELF_TEST_SEED, batch=SELF_TEST_BATCH)[0]


def _golden(ran: Sequence[Array], expected: Array, count: int) -> Golden:
    """The answer of the emulator to the golden input, which is behind ``count`` samples.

    The tolerance derives from the error on the samples, and covers the differences between the chips.
    """
    off = max(float(np.abs(answers[:count] - expected[:count]).max()) for answers in ran)
    apart = max(float(np.abs(answers[count:] - ran[0][count:]).max()) for answers in ran)
    tolerance = max(GOLDEN_TOLERANCE * off, 2 * apart) + ABSOLUTE_TOLERANCE
    return Golden(samples=sample_outputs([ran[0][count:]]), tolerance=float(f"{tolerance:.3g}"))


def _refused_whole(outcome: Outcome) -> CompiledFor:
    found = outcome.record
    return CompiledFor(found.chip, found.provider, found.compiler, 0, found.refused)


def _said(outcome: Outcome) -> str:
    nodes = ", ".join(f"{one.count} {one.operator} ({one.reason})" for one in outcome.record.refused[:3])
    return outcome.failure[:300] + (f"; refused: {nodes}" if nodes else "")


def _uses(exported: ExportedBlocks, operator: str) -> bool:
    """True if a fragment may hold a node of this type."""
    return any(operator.encode() in data for data in exported.own.values())
