"""Writes tokenizers.json: small tokenizers, and what Hugging Face's library makes of texts, for Kotlin's to agree with.

    python tests/contract/write_tokenizers.py [FILE]

WordPiece as BERT has it (cased too, and with a template), and byte-pair encoding of bytes as GPT-2 and RoBERTa have it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = Path(__file__).parent
MAX_TOKENS = 24
CORPUS = [
    "the quick brown fox jumps over the lazy dog and runs away from the unaffable cat",
    "a network of networks is packaged once and adapted everywhere, on phones and gateways",
    "it's 42 degrees; they've seen 1,234 birds (and more) at 5:30 o'clock - who's counting?",
    "café naïve Straße Ελλάδα Москва 東京 서울 مرحبا नमस्ते สวัสดี",
] * 4
TEXTS = [
    "",
    " ",
    "the quick brown fox",
    "The QUICK Brown FOX!",
    "unaffable unaffability",
    "it's they've I'm we'll you'd",
    "IT'S THEY'VE",
    "1,234.56 and 42%",
    "tabs\tand\nnewlines\r\nand  double  spaces ",
    "   leading and trailing   ",
    "café naïve résumé Ångström",
    "cafe\u0301 combining acute",
    "İstanbul and ıssız",
    "ΣΊΣΥΦΟΣ Σ ς",
    "Straße GROẞ",
    "Привет, Москва!",
    "東京 is in 日本、中国 too",
    "서울특별시 안녕하세요",
    "مرحبا بالعالم",
    "नमस्ते दुनिया",
    "สวัสดีชาวโลก",
    "שלום עולם",
    "emoji 😀 and 👩‍👩‍👧‍👦 family",
    "flags 🇩🇪🇫🇷",
    "zero\u200bwidth and soft\u00adhyphen",
    "control \u0000\u0001\u0007 characters",
    "replacement \ufffd character",
    "no\u00a0break\u2003spaces\u3000here",
    "bidi \u202eoverride\u202c",
    "private \ue000 use",
    "𝒻𝒶𝓃𝒸𝓎 mathematical letters",
    "𠀀𪜀 rare ideographs",
    "ＦＵＬＬ　ＷＩＤＴＨ",
    "ligature ﬁ and ﬂ",
    "a" * 99,
    "a" * 100,
    "a" * 101,
    "x" * 500,
    "word " * 60,
    "[CLS] written [SEP] in [MASK] the text [PAD]",
    "[cls] small and [MASK]glued",
    "<mask> of another kind <s></s>",
    "before   <mask>   after",
    "punctuation: .,;:!?()[]{}<>@#$%^&*-_=+|\\/~`'\"",
    "“curly quotes” – dashes — and … dots",
    "¿qué? ¡sí! «guillemets» §5 ¶",
    "currency € £ ¥ ₹",
    "super² subscript₂ ½ ¾ Ⅷ",
    "snake_case camelCase kebab-case",
    "https://example.org/path?query=1&other=2#part",
    "mail@example.org",
    "hyphen-ated and em—dash",
    "line\u2028separator paragraph\u2029separator",
    "vertical\u000btab form\u000cfeed next\u0085line",
    "'s 't 'll alone",
    "don''t  double '' quotes",
    "trailing spaces before word    end",
    "\n\n\nthree newlines\n\n",
    "mixed عربى and english 123",
    "é e\u0301 both forms",
    "ñandú Ñ",
    "ǅ titlecase digraph",
    "ŉ and ǰ specials",
    "\u0345 ypogegrammeni alone",
    "half 𝟙𝟚𝟛 digits ٣٤٥",
]


def word_pieces(*, lowercase: bool, template: bool) -> Tokenizer:
    """As BERT's, trained on a few sentences."""
    found = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    found.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    found.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    found.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=260, special_tokens=special, show_progress=False)
    )
    cls, sep = (found.token_to_id(name) for name in ("[CLS]", "[SEP]"))
    found.post_processor = (
        processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", cls), ("[SEP]", sep)])
        if template
        else processors.BertProcessing(("[SEP]", sep), ("[CLS]", cls))
    )
    return found


def byte_pairs(*, roberta: bool) -> Tokenizer:
    """As GPT-2's or RoBERTa's, trained on a few sentences."""
    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=roberta)
    found.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>"] if roberta else ["<|endoftext|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=380,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    found.train_from_iterator(CORPUS, trainer)
    if not roberta:
        found.post_processor = processors.ByteLevel(trim_offsets=False)
        return found
    found.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False, special=True)])
    ends = ((name, found.token_to_id(name)) for name in ("</s>", "<s>"))
    found.post_processor = processors.RobertaProcessing(*ends, add_prefix_space=True)
    return found


def tokenizers() -> dict[str, Tokenizer]:
    """By name."""
    return {
        "bert": word_pieces(lowercase=True, template=True),
        "bert cased": word_pieces(lowercase=False, template=False),
        "gpt2": byte_pairs(roberta=False),
        "roberta": byte_pairs(roberta=True),
    }


def case(name: str, tokenizer: Tokenizer) -> dict[str, Any]:
    """The file, and the ids of each text as ``device_sdk.data.kinds.texts`` limits them."""
    from device_sdk.data.kinds.texts import TextTokenizer

    file = tokenizer.to_str()
    ids = TextTokenizer(file.encode(), max_tokens=MAX_TOKENS).encode(TEXTS)
    return {"name": name, "tokenizer": json.loads(file), "ids": [one.ids.tolist() for one in ids]}


def vectors() -> dict[str, Any]:
    """All of the file."""
    return {
        "max_tokens": MAX_TOKENS,
        "texts": TEXTS,
        "tokenizers": [case(name, one) for name, one in tokenizers().items()],
    }


def main(path: Path) -> None:
    """Write the file, one tokenizer a line."""
    found = vectors()
    lines = ",\n".join(json.dumps(one, ensure_ascii=False, separators=(",", ":")) for one in found["tokenizers"])
    head = json.dumps({key: found[key] for key in ("max_tokens", "texts")}, ensure_ascii=True)
    path.write_text(f'{head[:-1]}, "tokenizers": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "tokenizers.json")
