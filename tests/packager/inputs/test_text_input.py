from __future__ import annotations

import pytest
import torch
from torch import nn

from packager.inputs.text_input import FromRows
from packager.tracing.traced_model import trace


class _Named(nn.Module):
    """Answers with the sum of each of its tensors."""

    def forward(self, **tensors: torch.Tensor) -> torch.Tensor:
        return torch.stack([tensors[name].sum(1) for name in sorted(tensors)], dim=1).float()


def test_rows_are_named_as_the_module_takes_them():
    rows = torch.tensor([[[5, 6, 0], [1, 1, 0], [0, 0, 0]]])
    assert FromRows(_Named())(rows[:, :2]).tolist() == [[2.0, 11.0]]  # attention_mask, input_ids
    assert FromRows(_Named(), type_ids=True)(rows).tolist() == [[2.0, 11.0, 0.0]]


def test_a_bert_of_hugging_face_is_cut_with_its_mask_beside_the_features():
    transformers = pytest.importorskip("transformers", reason="wraps a model of the library where it is installed")
    config = transformers.BertConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=32,
        num_labels=3,
        attn_implementation="eager",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = FromRows(transformers.BertForSequenceClassification(config)).eval()
    rows = torch.zeros(4, 2, 12, dtype=torch.int64)
    rows[:, 0, :8], rows[:, 1, :8] = torch.arange(8), 1
    traced = trace(model, rows)
    assert traced.tensors[0].dtype == "int64"
    assert len(traced.blocks) > 4
    assert {len(specs) for specs in traced.cuts} == {1, 2}
    with torch.no_grad():
        assert torch.allclose(traced.answer(rows), model(rows), atol=1e-5)
