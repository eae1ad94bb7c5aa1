package pathweave.sdk.policies.planning

import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test

/** Values of device_sdk/policies/deciding/promises.py. */
class PromisesTest {
    @Test
    fun `a bounded share is what the exact test rules out`() {
        val bounds = mostShares(126, 0.9)
        val python = mapOf(0 to 0.018108518985, 2 to 0.041686854125, 37 to 0.351857421808, 125 to 0.999164154945)
        python.forEach { (count, bound) -> assertEquals(bound, bounds[count], 1e-9) }
        assertEquals(1.0, bounds[126])
    }

    @Test
    fun `a gain is certain from a standard error on`() {
        assertTrue(isCertainGain(DoubleArray(100) { if (it < 6) 1.0 else 0.0 }))
        assertFalse(isCertainGain(DoubleArray(100) { if (it < 6) 1.0 else if (it < 11) -1.0 else 0.0 }))
        assertFalse(isCertainGain(DoubleArray(100) { if (it == 0) 1.0 else 0.0 }))
        assertFalse(isCertainGain(DoubleArray(5)))
    }
}
