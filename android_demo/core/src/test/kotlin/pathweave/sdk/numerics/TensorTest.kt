package pathweave.sdk.numerics

import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import pathweave.sdk.Contract
import pathweave.sdk.InputError
import pathweave.sdk.assertRefused
import pathweave.sdk.double
import pathweave.sdk.execution.goldenInputs
import pathweave.sdk.execution.sampleOutputs
import pathweave.sdk.floats
import pathweave.sdk.get
import pathweave.sdk.int
import pathweave.sdk.items
import pathweave.sdk.seed
import pathweave.sdk.supernet.CutPoint
import pathweave.sdk.supernet.TensorSpec
import pathweave.sdk.text

class TensorTest {
    @Test
    fun `halves convert there and back`() {
        for (bits in 0..0xffff) {
            val value = halfToFloat(bits.toShort())
            if (!value.isNaN()) assertEquals(bits.toShort(), floatToHalf(value))
        }
        assertTrue(halfToFloat(floatToHalf(Float.NaN)).isNaN())
    }

    @Test
    fun `floats round to the nearest half, ties to even`() {
        val cases = mapOf(
            1f + 1f / 2048 to 0x3c00, // half way to the next: even
            1f + 3f / 2048 to 0x3c02,
            1f + 1.1f / 2048 to 0x3c01,
            65519f to 0x7bff,
            65520f to 0x7c00,
            1e-8f to 0,
            3.0e-8f to 1,
            -1f to 0xbc00,
        )
        for ((value, bits) in cases) assertEquals(bits.toShort(), floatToHalf(value), "$value")
    }

    @Test
    fun `rows are kept in order`() {
        val tensor = Tensor.of(FloatArray(6) { it.toFloat() }, listOf(3, 2))
        val kept = tensor.rows(listOf(0, 2))
        assertEquals(listOf(2, 2), kept.shape)
        assertEquals(listOf(0f, 1f, 4f, 5f), kept.floats().toList())
    }

    @Test
    fun `a shape that does not fit is refused`() {
        assertRefused<InputError> { Tensor.of(FloatArray(5), listOf(2, 3)) }
        assertRefused<InputError> { Tensor.of(FloatArray(0), listOf(0, 3)) }
        assertRefused<InputError> { Tensor.of(FloatArray(0), listOf(1 shl 20, 1 shl 20)) }
    }

    @Test
    fun `golden inputs and samples are the same everywhere`() {
        val cases = Contract.vectors["golden"].items
        val specs = cases.map { case ->
            TensorSpec(
                "cut_3_${case["tensor"].int}",
                case["shape"].items.map { it.int },
                DType.named(case["dtype"].text)!!,
                case["low"].double,
                case["high"].double,
            )
        }
        val first = cases[0]
        val drawn = goldenInputs(CutPoint(first["cut_point"].int, specs), first["seed"].seed, first["batch"].int)
        for ((values, case) in drawn.zip(cases)) {
            assertEquals(listOf(case["batch"].int) + case["shape"].items.map { it.int }, values.shape)
            assertEquals(case["values"].floats, values.floats().toList())
            assertEquals(case["samples"].floats.map { it.toDouble() }, sampleOutputs(listOf(values))[0])
        }
    }
}
