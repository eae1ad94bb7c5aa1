package pathweave.sdk.policies.planning

import kotlin.random.Random
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNotNull
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import pathweave.sdk.InputError
import pathweave.sdk.assertRefused
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.supernet.LogitFeature
import pathweave.sdk.supernet.ease

private const val COUNT = 300

class DeciderFittingTest {
    private val random = Random(3)
    private val logits = Tensor.of(FloatArray(4 * COUNT) { random.nextFloat() * 4 }, listOf(COUNT, 4))

    /** Answers with a large margin are right, more often than others. */
    private val easy = BooleanArray(COUNT) { sample ->
        val row = List(4) { logits[4 * sample + it] }.sortedDescending()
        random.nextDouble() < (row[0] - row[1]) / 1.5
    }

    @Test
    fun `a fit estimates as many easy samples as there are, and higher where they are`() {
        for (byClass in listOf(true, false)) {
            val decider = fitLogistic(logits, Outcomes(easy), byClass = byClass)!!
            val eases = ease(decider, logits)
            assertEquals(easy.count { it }.toDouble() / COUNT, eases.average(), 1e-6)
            assertEquals(if (byClass) 4 else 0, decider.byAnswer.size)
            val (of, others) = eases.indices.partition { easy[it] }
            assertTrue(of.map { eases[it] }.average() > others.map { eases[it] }.average() + 0.1)
        }
        val two = fitLogistic(logits, Outcomes(easy), TOP_TWO, byClass = false)!!
        assertEquals(listOf(LogitFeature.TOP_1, LogitFeature.TOP_2), two.features)
        assertTrue(two.weights[0] > 0)
    }

    @Test
    fun `the fit that ranks left-out samples better is taken`() {
        // which class is answered says all: numbers by class are needed
        val byAnswer = BooleanArray(COUNT) { sample -> (0 until 4).maxBy { logits[4 * sample + it] } < 2 }
        assertEquals(4, fitBestLogistic(logits, Outcomes(byAnswer))!!.decider.byAnswer.size)
        assertNotNull(fitBestLogistic(logits, Outcomes(easy)))
        val leftOut = crossFittedEases(logits, Outcomes(easy), byClass = false)!!
        val seen = ease(fitLogistic(logits, Outcomes(easy), byClass = false)!!, logits)
        assertTrue(leftOut.indices.any { leftOut[it] != seen[it] })
    }

    @Test
    fun `a specialist is asked for the classes that it knows, and one that knows nothing never`() {
        val answers = IntArray(COUNT) { sample -> (0 until 4).maxBy { logits[4 * sample + it] } }
        val here = BooleanArray(COUNT) { random.nextDouble() < 0.6 }
        val knows = BooleanArray(COUNT) { answers[it] < 2 }
        fun outcomes(there: BooleanArray) = Outcomes(
            BooleanArray(COUNT) { here[it] || !there[it] },
            BooleanArray(COUNT) { here[it] && !there[it] },
        )
        val asking = outcomes(knows)
        val found = fitBestLogistic(logits, asking)!!
        val asked = found.eases.indices.sortedBy { found.eases[it] }.take(COUNT / 4)
        assertTrue(asked.count { knows[it] } > 0.95 * asked.size)
        assertTrue(askingPays(found.eases, asking.gains))
        val worse = outcomes(BooleanArray(COUNT) { if (here[it]) random.nextDouble() < 0.5 else random.nextDouble() < 0.05 })
        val useless = fitBestLogistic(logits, worse)!!
        assertTrue(!askingPays(useless.eases, worse.gains))
    }

    @Test
    fun `there is nothing to learn where all samples are alike, and no answers are refused`() {
        assertNull(fitLogistic(logits, Outcomes(BooleanArray(COUNT) { true })))
        assertNull(fitBestLogistic(logits, Outcomes(BooleanArray(COUNT))))
        assertNull(crossFittedEases(logits, Outcomes(BooleanArray(COUNT) { it == 0 }), byClass = true)) // a fold without it
        assertRefused<InputError> { fitLogistic(logits, Outcomes(BooleanArray(3))) }
        val broken = Tensor.of(FloatArray(8) { if (it == 5) Float.NaN else it.toFloat() }, listOf(2, 4))
        assertRefused<InputError> { fitLogistic(broken, Outcomes(booleanArrayOf(true, false))) }
    }
}
