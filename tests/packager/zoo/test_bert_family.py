from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra: pip install 'pathweave[huggingface]'")

import transformers

from packager.supernet.blocks.heads import attentions
from packager.tracing.traced_model import trace
from packager.zoo.bert_family import first_token_classifier, token_classifier

SIZES = {"vocab_size": 60, "num_labels": 3}
WIDE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
MODELS = {
    "bert": lambda **more: transformers.BertForSequenceClassification(
        transformers.BertConfig(**SIZES, **WIDE, max_position_embeddings=32, **more)
    ),
    "roberta": lambda **more: transformers.RobertaForSequenceClassification(
        transformers.RobertaConfig(**SIZES, **WIDE, max_position_embeddings=34, type_vocab_size=1, **more)
    ),
    "distilbert": lambda **more: transformers.DistilBertForSequenceClassification(
        transformers.DistilBertConfig(
            **SIZES, dim=16, n_layers=2, n_heads=4, hidden_dim=24, max_position_embeddings=32, **more
        )
    ),
}
OF_TOKENS = {
    "bert": lambda: transformers.BertForTokenClassification(
        transformers.BertConfig(**SIZES, **WIDE, max_position_embeddings=32)
    ),
    "roberta": lambda: transformers.RobertaForTokenClassification(
        transformers.RobertaConfig(**SIZES, **WIDE, max_position_embeddings=34, type_vocab_size=1)
    ),
    "distilbert": lambda: transformers.DistilBertForTokenClassification(
        transformers.DistilBertConfig(**SIZES, dim=16, n_layers=2, n_heads=4, hidden_dim=24, max_position_embeddings=32)
    ),
}


def built(name, models=MODELS, **more):
    torch.manual_seed(0)
    model = models[name](**more).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model, model.config.to_dict()


@pytest.mark.parametrize("name", MODELS)
def test_texts_of_every_length_get_the_answers_of_the_model_of_transformers(name):
    model, config = built(name)
    made = first_token_classifier(model, config)
    ids = torch.randint(5, 60, (4, 20), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(20) < torch.tensor([20, 11, 4, 1])[:, None]).long()
    ids = torch.where(mask == 1, ids, config["pad_token_id"])
    with torch.no_grad():
        wanted = model(input_ids=ids, attention_mask=mask).logits
        for length in (20, 24):
            more = length - 20
            rows = torch.stack(
                [
                    torch.nn.functional.pad(ids, (0, more), value=config["pad_token_id"]),
                    torch.nn.functional.pad(mask, (0, more)),
                ],
                dim=1,
            )
            assert torch.allclose(made(rows), wanted, atol=1e-4)


@pytest.mark.parametrize("name", OF_TOKENS)
def test_tokens_get_the_answers_of_the_model_of_transformers_and_padding_none(name):
    model, config = built(name, OF_TOKENS)
    made = token_classifier(model, config)
    ids = torch.randint(5, 60, (3, 12), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(12) < torch.tensor([12, 7, 1])[:, None]).long()
    ids = torch.where(mask == 1, ids, config["pad_token_id"])
    with torch.no_grad():
        wanted = model(input_ids=ids, attention_mask=mask).logits.transpose(1, 2) * mask[:, None]
        assert torch.allclose(made(torch.stack([ids, mask], dim=1)), wanted, atol=1e-4)
    assert all(len(cut) == 1 for cut in trace(made, torch.stack([ids, mask], dim=1)).cuts)


def test_one_tensor_is_live_between_its_layers_and_their_heads_are_found():
    model, config = built("bert")
    rows = torch.ones(3, 2, 12, dtype=torch.int64)
    traced = trace(first_token_classifier(model, config), rows)
    assert all(len(cut) == 1 for cut in traced.cuts)
    assert sum(len(attentions(block)) for block in traced.blocks) == 2


@pytest.mark.parametrize(
    ("name", "more"),
    [("bert", {"hidden_act": "relu"}), ("bert", {"is_decoder": True}), ("distilbert", {"activation": "relu"})],
)
def test_a_variant_is_left_to_transformers(name, more):
    assert first_token_classifier(*built(name, **more)) is None


def test_another_architecture_is_left_to_transformers():
    config = transformers.ElectraConfig(**SIZES, **WIDE, embedding_size=16)
    model = transformers.ElectraForSequenceClassification(config).eval()
    assert first_token_classifier(model, config.to_dict()) is None


def test_a_model_that_answers_otherwise_is_left_to_transformers():
    model, config = built("bert")
    model.bert.encoder.layer[0].register_forward_hook(lambda layer, given, made: made)
    model.classifier.register_forward_hook(lambda layer, given, made: made + 1)
    assert first_token_classifier(model, config) is None
