"""The models that ``generality`` elasticizes: every family of torchvision, typical ones of timm, and one on tokens.

Random weights, but such that the answers depend on all of them (``_lively``). Most images are small, so that all models
are quick: the structure is what counts. Ten models for phones see images at full size. Images have coarse patterns, as
photographs do: noise alone looks the same to late layers, whose statistics then magnify the rounding errors of earlier
ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import nn

CLASSES = 10
SIDE = 64
_TOKENS, _VOCABULARY = 32, 1000
INPUTS = 64
REAL_SIDE, REAL_INPUTS = 224, 8
_COARSE, _FINE = 4, 0.2  # patches of a side; noise on them
_FAINT, _LIVELY = 1e-3, 0.1

Made = tuple[nn.Module, torch.Tensor]  # the model in evaluation mode and inputs [count, *input]


def _torchvision(name: str, *, side: int = SIDE, **choices: object) -> Made:
    import torchvision

    return with_images(torchvision.models.get_model(name, num_classes=CLASSES, **choices), side)


def _timm(name: str, *, side: int = SIDE, **choices: object) -> Made:
    import timm

    return with_images(timm.create_model(name, num_classes=CLASSES, **choices), side)


def _maxvit() -> Made:
    """maxvit_t's blocks; its windows of 7 × 7 do not fit small images, windows of 2 × 2 do."""
    from torchvision.models.maxvit import MaxVit

    model = MaxVit(
        input_size=(SIDE, SIDE),
        stem_channels=64,
        partition_size=2,
        block_channels=[64, 128, 256, 512],
        block_layers=[2, 2, 5, 2],
        head_dim=32,
        stochastic_depth_prob=0.2,
        num_classes=CLASSES,
    )
    return with_images(model, SIDE)


def with_images(model: nn.Module, side: int) -> Made:
    """``model``, made lively, and images [count, 3, side, side] for it."""
    generator = torch.Generator().manual_seed(0)
    count = REAL_INPUTS if side == REAL_SIDE else INPUTS
    coarse = torch.randn(count, 3, _COARSE, _COARSE, generator=generator)
    fine = torch.randn(count, 3, side, side, generator=generator)
    images = nn.functional.interpolate(coarse, (side, side), mode="bicubic") + _FINE * fine
    return _lively(model, images), images


def _lively(model: nn.Module, inputs: torch.Tensor) -> nn.Module:
    """``model`` in evaluation mode, with signals that neither vanish nor explode on their way through it.

    Many models start with zeros in their heads and in what scales their branches, and untrained statistics of batch
    normalisation let the rest fade: all answers would be the same, whatever was done wrong.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.abs().max() < _FAINT:
                parameter.normal_(std=_LIVELY)
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the statistics of the one batch that follows
        model.eval()
        for norm in norms:
            norm.train()
        model(inputs)
    return model.eval()


class TokenEncoder(nn.Module):
    """A plain transformer encoder: token numbers [batch, tokens] int64 -> logits [batch, classes]."""

    def __init__(self, *, width: int = 64, layers: int = 6) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, width)
        self.position = nn.Parameter(torch.randn(1, _TOKENS, width) * 0.02)
        layer = partial(nn.TransformerEncoderLayer, width, 4, 4 * width, batch_first=True, norm_first=True)
        self.layers = nn.ModuleList(layer() for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))


def _tokens() -> Made:
    tokens = torch.randint(0, _VOCABULARY, (INPUTS, _TOKENS), generator=torch.Generator().manual_seed(0))
    return _lively(TokenEncoder(), tokens), tokens


_TORCHVISION = (
    *("alexnet", "resnet18", "resnet50", "resnext50_32x4d", "wide_resnet50_2", "densenet121"),
    *("mobilenet_v2", "mobilenet_v3_large", "shufflenet_v2_x1_0", "squeezenet1_1", "mnasnet1_0"),
    *("efficientnet_b0", "efficientnet_v2_s", "regnet_y_400mf", "convnext_tiny", "swin_t"),
)
_TIMM = (
    *("resnetv2_50", "mobilenetv3_small_100", "efficientnet_lite0", "convnextv2_atto", "ghostnet_100"),
    *("repvgg_a0", "regnetx_002", "mobilevit_xxs", "poolformer_s12", "hrnet_w18_small"),
)
# attention on five dimensions, a region under autocast, parallel streams, a chain that magnifies rounding
_TIMM_UNUSUAL = ("twins_svt_small", "efficientvit_b0")
_REAL_SIZE = (
    *("mobilenetv2_100", "mobilenetv3_large_100", "tf_efficientnet_lite0", "ghostnet_100", "mnasnet_100"),
    *("edgenext_xx_small", "repvit_m0_9", "fastvit_t8", "resnet18", "deit_tiny_patch16_224"),
)

MODELS: Mapping[str, Callable[[], Made]] = {
    **{f"torchvision:{name}": partial(_torchvision, name) for name in _TORCHVISION},
    "torchvision:vgg16_bn": partial(_torchvision, "vgg16_bn", side=SIDE // 2),
    "torchvision:googlenet": partial(_torchvision, "googlenet", aux_logits=False, init_weights=False),
    "torchvision:inception_v3": partial(_torchvision, "inception_v3", side=96, aux_logits=False, init_weights=False),
    "torchvision:vit_b_16": partial(_torchvision, "vit_b_16", image_size=SIDE),
    "torchvision:maxvit_t": _maxvit,
    **{f"timm:{name}": partial(_timm, name) for name in _TIMM},
    "timm:deit_tiny_patch16_224": partial(_timm, "deit_tiny_patch16_224", img_size=SIDE),
    "timm:mixer_s32_224": partial(_timm, "mixer_s32_224", img_size=SIDE),
    "timm:resmlp_12_224": partial(_timm, "resmlp_12_224", img_size=SIDE),
    **{f"timm:{name}": partial(_timm, name) for name in _TIMM_UNUSUAL},
    "timm:coat_tiny": partial(_timm, "coat_tiny", img_size=SIDE),
    "timm:nest_tiny": partial(_timm, "nest_tiny", img_size=SIDE),
    "timm:crossvit_tiny_240": partial(_timm, "crossvit_tiny_240", side=120, img_size=120),
    "timm:convmixer_768_32": partial(_timm, "convmixer_768_32", side=SIDE // 2),
    "timm:hiera_tiny_224": partial(_timm, "hiera_tiny_224", img_size=SIDE),
    "tokens:transformer_encoder": _tokens,
    **{f"timm:{name} at {REAL_SIDE}": partial(_timm, name, side=REAL_SIDE) for name in _REAL_SIZE},
}
QUICK_MODELS = ("torchvision:resnet18", "timm:hrnet_w18_small", "tokens:transformer_encoder")
