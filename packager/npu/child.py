"""The process that holds the compiler: ``compiler.py`` starts it by its file and ends it if it hangs.

Reads requests from standard input and answers each on standard output, one JSON object a line. The compiler's library
may crash; all that dies then is this process. It writes its reasons to standard error, at the most detailed level only,
which is therefore a file here, read after each model. Imports nothing of Pathweave's, so that it starts in any folder.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

PROVIDER = "QNNExecutionProvider"
UNKNOWN = "the provider gave no reason"
_VERBOSE = 0
_ENDS = "QNN EP is configured to not take"  # converts at the ends of a model, which the processor does by design
_UNIT = re.compile(r"Validation (PASSED|FAILED) for \d+ nodes in OrtNodeUnit")
_NODE = re.compile(r"Operator type: (\S+) Node name: (.*?) Node index: \d+")
_REASON = re.compile(r"REASON : (.*)")
_NAMED = re.compile(r"\w+ node `[^`]*` will not be assigned to QNN EP\.?$")  # repeats operator and name
_TRIED = re.compile(r"Qnn_OpConfig node name:")
_TYPE = re.compile(r"dataType=QNN_DATATYPE_(\w+)")
_CODE = re.compile(r"backendValidateOpConfig\(\) failed for node .* of type `(\w+)` with error code (\d+)")

Refusals = Counter[tuple[str, str]]  # nodes by operator and reason


class Reasons:
    """Reasons of refusals by node and by operator, read from the provider's ``log``."""

    def __init__(self, log: str) -> None:
        self.nodes: dict[str, tuple[str, str]] = {}  # operator and reason
        self._operators: dict[str, str] = {}
        refused: list[tuple[str, str]] | None = None
        types, detail = "", ""  # of the operator that was tried last
        for line in log.splitlines():
            if unit := _UNIT.search(line):
                refused = [] if unit[1] == "FAILED" else None
            elif _TRIED.search(line):
                types, detail = "", ""
            elif kind := _TYPE.search(line):
                types = types or kind[1]
            elif code := _CODE.search(line):
                detail = f" QNN refuses {code[1]} of {types}: error code {code[2]}"
            elif refused is not None and (node := _NODE.search(line)):
                refused.append((node[1], node[2]))
            elif refused is not None and (reason := _REASON.search(line)):
                self._note(refused, _NAMED.sub("", reason[1].strip()) + detail)
                detail = ""

    def _note(self, refused: list[tuple[str, str]], reason: str) -> None:
        for operator, name in refused:
            self.nodes[name or operator] = (operator, reason)
            self._operators[operator] = reason

    def of(self, name: str, operator: str) -> str:
        """The reason for a node, else the last for its operator."""
        if name in self.nodes:
            return self.nodes[name][1]
        return self._operators.get(operator, UNKNOWN)

    def all(self) -> Refusals:
        """All refusals but those by design, of a model that could not be compiled."""
        return Counter(one for one in self.nodes.values() if not one[1].startswith(_ENDS) and PROVIDER not in one[0])


class Log:
    """The file that standard error, 2 in any library's view, is written to."""

    def __init__(self) -> None:
        self._file: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 — open as long as the process
        os.dup2(self._file.fileno(), 2)

    def clear(self) -> None:
        """Forget what was written."""
        os.ftruncate(2, 0)
        os.lseek(2, 0, os.SEEK_SET)

    def text(self) -> str:
        """Text written since ``clear``."""
        self._file.seek(0)
        return self._file.read().decode(errors="replace")


def answered(request: Mapping[str, Any], log: Log, devices: list[Any], backend: str) -> Iterator[dict[str, Any]]:
    """Compile the model of one request and run it on its inputs [count, …]: {"ran": n} per run, then the result."""
    import onnxruntime

    log.clear()
    started = time.perf_counter()
    context = Path(request["folder"]) / "context.onnx"
    context.unlink(missing_ok=True)
    # Storing what was compiled fails where operators are taken only once they are expanded: then try without.
    for stored in [context, None] if request["inputs"] is None else [None]:
        try:
            session = _session(onnxruntime, request, stored, devices, backend)
            break
        except Exception as error:  # the binding raises many unrelated types
            failure = {"failure": _first_line(error), "refused": _listed(Reasons(log.text()).all())}
        log.clear()
    else:
        yield failure
        return
    nodes, refused = _placed(session, Reasons(log.text()))
    result = {
        "nodes": nodes,
        "refused": _listed(refused),
        "seconds": time.perf_counter() - started,
        "context_bytes": context.stat().st_size if context.exists() else 0,
    }
    if nodes and request["inputs"] is not None:
        try:
            yield from _run(session, request, log)
        except Exception as error:  # as above
            yield {"failure": f"the emulator failed: {_first_line(error)}", "refused": result["refused"]}
            return
    yield result


def _session(
    onnxruntime: Any, request: Mapping[str, Any], context: Path | None, devices: list[Any], backend: str
) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _VERBOSE
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.add_free_dimension_override_by_name("batch", 1)
    if context is not None:
        options.add_session_config_entry("ep.context_enable", "1")
        options.add_session_config_entry("ep.context_file_path", str(context))
        options.add_session_config_entry("ep.context_embed_mode", "1")
    settings = {
        "backend_path": backend,
        "htp_arch": str(request["htp_arch"]),
        "soc_model": str(request["soc_model"]),
        "enable_htp_fp16_precision": "1",
        "offload_graph_io_quantization": "1",
    }
    options.add_provider_for_devices(devices, settings)
    return onnxruntime.InferenceSession(request["model"], options)


def _placed(session: Any, reasons: Reasons) -> tuple[int, Refusals]:
    """The number of nodes that the provider took, and those that it left to the processor."""
    taken, refused = 0, Refusals()
    for part in session.get_provider_graph_assignment_info():
        for node in part.get_nodes():
            if part.ep_name == PROVIDER:
                taken += 1
                continue
            reason = reasons.of(node.name, node.op_type)
            if not reason.startswith(_ENDS):
                refused[node.op_type, reason] += 1
    return taken, refused


def _run(session: Any, request: Mapping[str, Any], log: Log) -> Iterator[dict[str, Any]]:
    import numpy as np

    inputs = np.load(request["inputs"], allow_pickle=False)
    name, found = session.get_inputs()[0].name, []
    for count, sample in enumerate(inputs, start=1):
        found.append(session.run(None, {name: sample[None]})[0])
        log.clear()
        yield {"ran": count}
    np.save(request["answers"], np.concatenate(found))


def _listed(refused: Refusals) -> list[tuple[str, int, str]]:
    return [(operator, count, reason) for (operator, reason), count in refused.most_common()]


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].removeprefix("[ONNXRuntimeError] : ") if lines else type(error).__name__


def main() -> None:
    """Answer requests until standard input ends."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    log = Log()
    os.dup2(2, 1)  # the library prints there, too
    import onnxruntime
    import onnxruntime_qnn

    onnxruntime.register_execution_provider_library(PROVIDER, onnxruntime_qnn.get_library_path())
    devices = [one for one in onnxruntime.get_ep_devices() if one.ep_name == PROVIDER]
    for line in sys.stdin:
        for reply in answered(json.loads(line), log, devices, onnxruntime_qnn.get_qnn_htp_path()):
            replies.write(json.dumps(reply) + "\n")
            replies.flush()


if __name__ == "__main__":
    main()
