"""Hard texts: a small network with a tokenizer of its own on the device, MiniLM at a server of this machine."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor, nn

from benchmarks.runner.run import BenchOptions
from benchmarks.tasks.case import Case
from benchmarks.tasks.judging import SETTINGS
from benchmarks.tasks.small_networks import fit, packaged
from benchmarks.tasks.texts import MAX_TOKENS, Texts, glosses_names
from benchmarks.tasks.trained_weights import trained_file, with_weights
from device_sdk.bundles.bundle import Bundle
from device_sdk.data.kinds import preparer_of
from device_sdk.offload.remote_model import TEXTS, RemoteModel
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.answer import SERVER
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.plan import Plan
from packager.data.prepared_set import PreparedSet
from packager.inputs.loaded_model import LoadedModel
from packager.inputs.text_input import text_input
from packager.zoo.text_encoder import EncoderSize, TextClassifier
from pathweave.server_process import running_server

_SHARE = 0.29  # of the texts that may be sent; the target is 0.3
_TIMEOUT_S, _TOGETHER = 60.0, 100  # of a call, and its texts
_WORDS = 6_000  # and parts of words
_SIZE = EncoderSize(vocabulary=_WORDS, channels=128, layers=1, heads=2, inner=256, positions=MAX_TOKENS)
_EPOCHS, _QUICK_EPOCHS = 6.0, 1.0
_DROPPED = 0.3  # of the tokens, in training
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_SHARPNESS = 8.0  # of the logits, whose features have unit length


@dataclass(frozen=True)
class AskedTexts:
    """Accuracies in percent, and the share of the texts that the server answered."""

    plan: Plan
    small: float
    large: float
    together: float
    sent: float
    by_confidence: float  # at the same share, by a limit of the softmax's maximum on the report itself

    @property
    def gap_share(self) -> float:
        """The part of the large model's lead that asking gains."""
        return (self.together - self.small) / (self.large - self.small)

    def rows(self, case: Case) -> list[dict[str, object]]:
        """For the table."""
        percents = {
            "small": self.small,
            "large": self.large,
            "asking": self.together,
            "most confident": self.by_confidence,
        }
        return [case.row(f"asked: {name}", self.plan, percent=percent) for name, percent in percents.items()]

    def figures(self) -> dict[str, float]:
        """The two that have targets, and the accuracies behind them."""
        return {
            "asked_gap_share": self.gap_share,
            "asked_sent": self.sent,
            "asked_small": self.small,
            "asked_together": self.together,
            "asked_large": self.large,
            "asked_by_confidence": self.by_confidence,
        }


def asked_texts(case: Case, parts: Mapping[str, Texts], options: BenchOptions) -> AskedTexts:
    """The plan that asks about a share of the texts at most, chosen on private texts, judged on those of the report.

    Answers to hard texts are the server's and the device's, pooled as the private texts say. ``case``: of the
    large model, whose bundle the server has.
    """
    folder = small_bundle(parts, options)
    work, texts = options.work_folder / "asked", list(case.report.samples)
    name = Bundle.open(case.folder).manifest.name
    shutil.copytree(case.folder, work / "bundles" / name, dirs_exist_ok=True)
    with (
        running_server(work / "bundles", data=work / "server") as url,
        AdaptiveModel.open(folder, state_folder=work / "device") as model,
    ):
        server = RemoteModel(server=url, model=f"{name}{TEXTS}", privacy="inputs", timeout_s=_TIMEOUT_S, share=_SHARE)
        model.remote.connect(server)
        model.remote.pool(case.search.samples, case.search.targets)
        goal = Goal(share_asked=_SHARE)
        found = model.adapt(case.search.samples, goal, {"ask"}, case.search.targets, settings=SETTINGS)
        together, sources = _answers(model, texts)
        model.use(Plan(found.plan.subnet).with_prior(found.plan.class_prior))
        here, _ = _answers(model, texts)
    with AdaptiveModel.open(case.folder, state_folder=work / "large") as large:
        there, _ = _answers(large, texts)
    asked = np.array(sources) == SERVER
    own = torch.from_numpy(here).softmax(1).amax(1).numpy()
    hard = own < np.quantile(own, asked.mean())
    answered = (here, there, together, np.where(hard[:, None], there, here))
    alone, served, both, by_confidence = (case.percent(list(one), case.report.targets) for one in answered)
    return AskedTexts(found.plan, alone, served, both, float(asked.mean()), by_confidence)


def _answers(model: AdaptiveModel, texts: Sequence[str]) -> tuple[npt.NDArray[np.float32], list[str]]:
    """Logits [count, classes] and the source of each, some texts a call."""
    found = [model(texts[at : at + _TOGETHER]) for at in range(0, len(texts), _TOGETHER)]
    return np.concatenate([one.output for one in found]), [source for one in found for source in one.source]


def small_bundle(parts: Mapping[str, Texts], options: BenchOptions) -> Path:
    """One layer of attention, trained on the training texts alone, with words of theirs as its vocabulary."""
    tokenizer_file = trained_file("tasks-words.json", options, lambda: _tokenizer(parts["train"].texts))
    preprocessing, blobs = text_input(tokenizer_file.read_bytes(), max_tokens=MAX_TOKENS)
    prepare = preparer_of(preprocessing, (2, MAX_TOKENS), blobs.__getitem__).prepare
    names = tuple(sorted(glosses_names(parts)))
    sets = [PreparedSet(prepare(parts[part].texts), parts[part].labels, names) for part in ("train", "validation")]
    [tokenizer] = blobs.values()
    torch.manual_seed(0)
    module = TextClassifier(_SIZE, classes=len(names), tokenizer=tokenizer, max_tokens=MAX_TOKENS)
    sharp = nn.Sequential(module, _Sharpened())

    def train() -> None:
        fit(
            sharp,
            sets[0].inputs,
            sets[0].labels,
            epochs=_QUICK_EPOCHS if options.quick else _EPOCHS,
            changed=_with_unknown_words,
            progress=options.progress,
            name="train a small network of texts",
        )

    with_weights(sharp, "words", options, train)
    shape = (2, MAX_TOKENS)
    model = LoadedModel(sharp, shape, preprocessing, names, "words", None, "trained by bench tasks", blobs=blobs)
    return packaged(model, sets, options)


class _Sharpened(nn.Module):
    """Logits of features of unit length, multiplied."""

    def forward(self, logits: Tensor) -> Tensor:
        """[n, classes] → the same shape."""
        return _SHARPNESS * logits


def _tokenizer(texts: Sequence[str]) -> bytes:
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=_WORDS, special_tokens=list(_SPECIAL), show_progress=False)
    made.train_from_iterator(texts, trainer)
    ends = [(name, _SPECIAL.index(name)) for name in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return made.to_str().encode()


def _with_unknown_words(batch: Tensor) -> Tensor:
    """Tokens [n, 2, t], of which some become unknown: what the network has to do without."""
    found = batch.clone()
    dropped = (torch.rand(found[:, 0].shape) < _DROPPED) & (found[:, 0] >= len(_SPECIAL))
    found[:, 0][dropped] = _SPECIAL.index("[UNK]")
    return found
