/** How long a transfer may take. */
package pathweave.sdk.transports

/** Time limits of a transfer: [idleS] without a byte, [totalS] altogether. */
public data class Deadlines(public val idleS: Double = 10.0, public val totalS: Double = 600.0)
