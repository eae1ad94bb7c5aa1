"""The operators and element types that a fragment may contain. Mirrored in Kotlin (``Operators.kt``).

The deterministic operators of ONNX's standard domain that compute tensors from tensors. Left out: control flow
(subgraphs may read files and need not end), optionals and strings, random numbers, decoding of images, losses, and
sequences, except for the pair that torch's exporter may write for ``chunk``. Of other domains, ``com.microsoft``
included, the packager writes none.
"""

from __future__ import annotations

DOMAINS = frozenset({"", "ai.onnx"})  # two names of the standard domain

_ELEMENTWISE = """
    Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil
    Celu Clip Cos Cosh Div Dropout Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity
    IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu
    Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor
"""
_QUANTISATION = """
    ConvInteger DequantizeLinear DynamicQuantizeLinear MatMulInteger QLinearConv QLinearMatMul QuantizeLinear
"""
_LAYERS = """
    Attention AveragePool BatchNormalization Conv ConvTranspose DeformConv Det Einsum GRU Gemm GlobalAveragePool
    GlobalLpPool GlobalMaxPool GroupNormalization Hardmax InstanceNormalization LRN LSTM LayerNormalization LogSoftmax
    LpNormalization LpPool MatMul MaxPool MaxRoiPool MaxUnpool MeanVarianceNormalization RMSNormalization RNN RoiAlign
    RotaryEmbedding Softmax
"""
_REDUCTIONS = """
    ArgMax ArgMin CumProd CumSum NonMaxSuppression ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean
    ReduceMin ReduceProd ReduceSum ReduceSumSquare TopK Unique
"""
_MOVEMENT = """
    AffineGrid CenterCropPad Col2Im Compress Concat Constant ConstantOfShape DepthToSpace Expand EyeLike Flatten Gather
    GatherElements GatherND GridSample NonZero OneHot Pad Range Reshape Resize ReverseSequence Scatter ScatterElements
    ScatterND SequenceAt Shape Size Slice SpaceToDepth Split SplitToSequence Squeeze TensorScatter Tile Transpose Trilu
    Unsqueeze Upsample
"""
_SIGNALS = "BlackmanWindow DFT HammingWindow HannWindow MelWeightMatrix STFT"

OPERATORS = frozenset(" ".join((_ELEMENTWISE, _QUANTISATION, _LAYERS, _REDUCTIONS, _MOVEMENT, _SIGNALS)).split())

# Bytes per element of the element types, by number in onnx.proto. Strings, complex numbers and those below 8 bits are
# left out.
ELEMENT_BYTES = {
    1: 4,  # float32
    2: 1,  # uint8
    3: 1,  # int8
    4: 2,  # uint16
    5: 2,  # int16
    6: 4,  # int32
    7: 8,  # int64
    9: 1,  # bool
    10: 2,  # float16
    11: 8,  # float64
    12: 4,  # uint32
    13: 8,  # uint64
    16: 2,  # bfloat16
}
