from __future__ import annotations

from pathlib import Path

import pytest

from device_sdk.runtimes.kept_contexts import session_by_context


class Compiler:
    """Creates sessions, and writes a context where it is told to; ``broken``: kept contexts do not load."""

    def __init__(self, *, broken=False, writes=True):
        self.made, self.broken, self.writes = [], broken, writes

    def __call__(self, model, entries):
        if isinstance(model, str):
            if self.broken:
                raise RuntimeError("another driver")
            self.made.append("loaded")
            return Path(model).read_bytes()
        self.made.append("compiled")
        if entries and self.writes:
            Path(entries["ep.context_file_path"]).write_bytes(b"context of " + model)
        return b"context of " + model


def session(create, folder, model=b"model", identity="runtime 1", **options):
    return session_by_context(create, model, folder=folder, identity=identity, options=options)


def test_what_was_compiled_is_loaded_the_next_time(tmp_path):
    create = Compiler()
    assert session(create, tmp_path / "kept") == session(create, tmp_path / "kept") == b"context of model"
    assert create.made == ["compiled", "loaded"]
    assert [path.suffix for path in (tmp_path / "kept").iterdir()] == [".onnx"]


@pytest.mark.parametrize("other", [{"model": b"other"}, {"identity": "runtime 2"}, {"soc_model": "43"}])
def test_another_model_version_or_option_is_compiled_again(tmp_path, other):
    create = Compiler()
    session(create, tmp_path)
    session(create, tmp_path, **other)
    assert create.made == ["compiled", "compiled"]


def test_a_kept_context_that_does_not_load_is_compiled_again(tmp_path):
    session(Compiler(), tmp_path)
    create = Compiler(broken=True)
    assert session(create, tmp_path) == b"context of model"
    assert create.made == ["compiled"]


def test_without_a_folder_nothing_is_kept():
    create = Compiler()
    session(create, None)
    session(create, None)
    assert create.made == ["compiled", "compiled"]


def test_a_provider_that_writes_no_context_runs_all_the_same(tmp_path):
    create = Compiler(writes=False)
    assert session(create, tmp_path) == b"context of model"
    assert list(tmp_path.iterdir()) == []


def test_a_compiler_that_fails_leaves_nothing_behind(tmp_path):
    def fails(model, entries):
        Path(entries["ep.context_file_path"]).write_bytes(b"half")
        raise RuntimeError("refused")

    with pytest.raises(RuntimeError, match="refused"):
        session(fails, tmp_path)
    assert list(tmp_path.iterdir()) == []
