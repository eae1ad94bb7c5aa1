/**
 * The operators and element types that a fragment may contain; the same table as `device_sdk/bundles/operators.py`.
 *
 * The deterministic operators of ONNX's standard domain that compute tensors from tensors. Left out: control flow
 * (subgraphs may read files and need not end), optionals and strings, random numbers, decoding of images, losses, and
 * sequences, except for the pair that torch's exporter may write for `chunk`. Of other domains, `com.microsoft`
 * included, the packager writes none.
 */
package pathweave.sdk.bundles

internal val DOMAINS: Set<String> = setOf("", "ai.onnx") // two names of the standard domain

private const val ELEMENTWISE = """
    Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil
    Celu Clip Cos Cosh Div Dropout Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity
    IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu
    Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor
"""
private const val QUANTISATION = """
    ConvInteger DequantizeLinear DynamicQuantizeLinear MatMulInteger QLinearConv QLinearMatMul QuantizeLinear
"""
private const val LAYERS = """
    Attention AveragePool BatchNormalization Conv ConvTranspose DeformConv Det Einsum GRU Gemm GlobalAveragePool
    GlobalLpPool GlobalMaxPool GroupNormalization Hardmax InstanceNormalization LRN LSTM LayerNormalization LogSoftmax
    LpNormalization LpPool MatMul MaxPool MaxRoiPool MaxUnpool MeanVarianceNormalization RMSNormalization RNN RoiAlign
    RotaryEmbedding Softmax
"""
private const val REDUCTIONS = """
    ArgMax ArgMin CumProd CumSum NonMaxSuppression ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean
    ReduceMin ReduceProd ReduceSum ReduceSumSquare TopK Unique
"""
private const val MOVEMENT = """
    AffineGrid CenterCropPad Col2Im Compress Concat Constant ConstantOfShape DepthToSpace Expand EyeLike Flatten Gather
    GatherElements GatherND GridSample NonZero OneHot Pad Range Reshape Resize ReverseSequence Scatter ScatterElements
    ScatterND SequenceAt Shape Size Slice SpaceToDepth Split SplitToSequence Squeeze TensorScatter Tile Transpose Trilu
    Unsqueeze Upsample
"""
private const val SIGNALS = "BlackmanWindow DFT HammingWindow HannWindow MelWeightMatrix STFT"

internal val OPERATORS: Set<String> =
    listOf(ELEMENTWISE, QUANTISATION, LAYERS, REDUCTIONS, MOVEMENT, SIGNALS)
        .flatMap { it.trim().split(Regex("\\s+")) }.toSet()

/** By their numbers in onnx.proto. Strings, complex numbers and those below 8 bits are left out. */
internal val ELEMENT_TYPES: Set<Long> = setOf(1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16)
