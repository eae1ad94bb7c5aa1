package pathweave.demo

import java.util.concurrent.CountDownLatch
import java.util.concurrent.TimeUnit.SECONDS
import java.util.concurrent.atomic.AtomicReference
import kotlin.concurrent.thread
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertSame
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.Timeout
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.InfeasibleDeadlineError
import pathweave.sdk.data.Image
import pathweave.sdk.logs.LogLine
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.SampleSize

@Timeout(60)
class LiveLoopTest {
    private val images = Reference.images(3)

    /** Runs a loop until it ends by itself, and returns the reason. */
    private fun reasonOf(frames: Frames): String? {
        val (over, why) = CountDownLatch(1) to AtomicReference<String?>()
        val observer = object : LiveObserver {
            override fun answered(answer: Classified, plan: Plan) = Unit
            override fun tooLate(error: InfeasibleDeadlineError) = Unit
            override fun ended(reason: String?) {
                why.set(reason)
                over.countDown()
            }
        }
        AdaptiveModel.open(Reference.signed).use { model ->
            LiveLoop(model, frames, { AnswerMode() }, observer).use { assertTrue(over.await(20, SECONDS)) }
        }
        return why.get()
    }

    @Test
    fun `a camera that fails ends the loop with the reason`() {
        val frames = LatestFrame()
        frames.put(images[0])
        thread { frames.fail(UnreadableException("The camera was disconnected.")) }
        assertEquals("The camera was disconnected.", reasonOf(frames))
    }

    @Test
    fun `a picture that the model cannot take ends the loop with the reason`() {
        val wrong = Image(ByteArray(27), SampleSize(3, 3), 3)
        assertTrue("expected images of 2x2" in reasonOf(FakeCamera(listOf(wrong)))!!)
    }

    @Test
    fun `only the newest frame is taken`() {
        val frames = LatestFrame()
        images.forEach(frames::put)
        assertSame(images[2], frames.take())
        thread { frames.put(images[1]) }
        assertSame(images[1], frames.take())
        thread { frames.close() }
        assertNull(frames.take())
        assertNull(frames.apply { put(images[0]) }.take())
        val failing = LatestFrame().apply { fail(UnreadableException("gone")) }
        assertThrows(UnreadableException::class.java) { failing.take() }
    }

    @Test
    fun `pictures come again and again until they are closed`() {
        val frames = RepeatedFrames(images, pauseMs = 1)
        assertEquals(images + images, List(6) { frames.take() })
        val slow = RepeatedFrames(images, pauseMs = 60_000)
        thread { slow.close() }
        assertNull(slow.take())
    }

    @Test
    fun `a line of the log is shown without what it does not say`() {
        val fields = mapOf("subnet" to "o0 o1", "budget_memory_mb" to "null", "exits" to "[]", "samples" to "12")
        val line = LogLine("2026-11-25T15:20:01.123+00:00", "b", "onnxruntime", "adapted", fields)
        assertEquals("15:20:01  adapted\n  subnet: o0 o1\n  samples: 12", logText(line))
    }
}
