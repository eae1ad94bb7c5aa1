/** Time as the SDK measures it. */
package pathweave.sdk

internal const val NANOSECONDS_PER_MS = 1e6

/** Nanoseconds from any start; monotonic. */
public typealias Clock = () -> Long
