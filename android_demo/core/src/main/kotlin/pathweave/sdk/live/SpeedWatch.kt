/** Explains why the device has become slower, by readings of the system: one before, two while it is slow. */
package pathweave.sdk.live

private const val WINDOW_S = 0.05 // over which load is counted: the system counts ticks of 10 ms
private const val AGAIN_S = 0.25 // a stated cause is not read again sooner

/**
 * Reads [signals] in the thread of live update, which waits by [wait] (seconds). For one thread.
 *
 * Readings are compared with that of [begin]: the device as it was when its speed was as estimated.
 */
internal class SpeedWatch(
    private val signals: SpeedSignals,
    private val clock: () -> Double,
    private val wait: (Double) -> Unit,
) {
    private var before = SpeedReading()
    private var stated = Cause.UNKNOWN
    private var readS = Double.NEGATIVE_INFINITY

    /** Compare with the device as it is now, from now on. */
    fun begin() {
        before = signals.read()
    }

    /** The lasting cause that the system states by itself now, or unknown; read a few times a second at most. */
    fun stated(): Cause {
        val nowS = clock()
        if (!(nowS - readS >= 0 && nowS - readS < AGAIN_S)) {
            stated = lastingCause(before, signals.read())
            readS = nowS
        }
        return stated
    }

    /** The cause by what happens now, which takes a moment; unknown where the system tells nothing that fits. */
    fun explained(): Cause {
        val recent = signals.read()
        wait(WINDOW_S)
        return slowCause(before, recent, signals.read())
    }
}
