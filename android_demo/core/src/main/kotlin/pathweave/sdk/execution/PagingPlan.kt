/**
 * Which blocks are loaded together under a memory cap, and which of them leave when there is no room. Mirrors
 * device_sdk/execution/paging.py.
 *
 * A page is a piece of a path that is loaded and freed as one. Loading a page takes several times its weights for a
 * moment, which then shrink to about the weights: so it is the size of the largest page that decides how much of the
 * cap is left for those that stay (AdaptiveNet §6 loads block by block).
 */
package pathweave.sdk.execution

import java.lang.Math.rint
import pathweave.sdk.BudgetError
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.MB

internal const val LOADING_FACTOR = 5.0 // peak while loading / weights
private const val RESIDENT_FACTOR = 1.1 // what stays / weights
internal const val SESSION_BYTES = 512L * 1024 // what a session takes besides its weights
private const val DOUBLINGS = 16
private const val HINT_STEP_BYTES = 10_000L

/**
 * What is never divided: a block, together with the branch of the exit behind it if the plan has one there.
 *
 * Without [edge] it is an exit's branch alone, which runs on given features. [weights]: bytes of each blob that it
 * needs, by name: pieces that share one count it once where they are loaded together. [workingBytes]: what it takes
 * while it runs, its inputs and outputs included.
 */
internal data class Piece(
    val edge: Edge?,
    val exit: ExitChoice?,
    val weights: Map<String, Long>,
    val workingBytes: Long,
) {
    override fun toString(): String = if (edge == null) "exit ${exit?.exit}" else "block $edge"
}

/** Memory of a page: while it is loaded, from then on, and in addition while it runs. */
internal data class Footprint(val loadingBytes: Long, val residentBytes: Long, val workingBytes: Long) {
    /** What this page takes if nothing else is there. */
    val leastBytes: Long get() = maxOf(loadingBytes, residentBytes + workingBytes)
}

/** What [pieces], loaded as one page, take. */
internal fun footprint(pieces: List<Piece>): Footprint {
    val weights = weightBytes(pieces)
    return Footprint(
        loadingBytes = rint(LOADING_FACTOR * weights).toLong() + SESSION_BYTES,
        residentBytes = rint(RESIDENT_FACTOR * weights).toLong() + SESSION_BYTES,
        workingBytes = pieces.maxOf { it.workingBytes },
    )
}

/** The smallest cap under which [pieces] run: that of the largest, alone; 0 where there are none. */
internal fun leastCapBytes(pieces: List<Piece>): Long = pieces.maxOfOrNull { footprint(listOf(it)).leastBytes } ?: 0L

/**
 * Divide each stretch into pages, so that under [capBytes] as few as possible have to be loaded again.
 *
 * 1. Everything in one page per stretch, if that can be loaded and stay. 2. Else the largest pages with which all can
 * stay, so that nothing is ever loaded twice. 3. Else pages as small as the largest piece, which has to be loaded
 * somehow: what smaller ones would save elsewhere, they pay in sessions.
 *
 * @throws BudgetError the cap is too small for the largest piece; says the least that works.
 */
internal fun pages(stretches: List<List<Piece>>, capBytes: Long): List<List<List<Piece>>> {
    val every = stretches.flatten()
    checkCap(every, capBytes)
    val smallest = every.maxOfOrNull { weightBytes(listOf(it)) } ?: 0L
    for (doublings in DOUBLINGS downTo 0) {
        val divided = stretches.map { packed(it, smallest shl doublings, capBytes) }
        if (allStay(divided.flatten().map(::footprint), capBytes)) return divided
    }
    return stretches.map { packed(it, smallest, capBytes) }
}

/** Refuse a cap under which the largest of [pieces] does not run alone ([BudgetError] with the least that works). */
internal fun checkCap(pieces: List<Piece>, capBytes: Long) {
    val least = leastCapBytes(pieces)
    if (capBytes >= least) return
    val largest = pieces.maxBy { footprint(listOf(it)).leastBytes }
    throw BudgetError(
        "a memory cap of ${megabytes(capBytes)} MB is too small: $largest alone takes ${megabytes(least)} MB",
        leastCapHint(least),
    )
}

/** What to allow at least, rounded up. */
internal fun leastCapHint(leastBytes: Long): String {
    val steps = (leastBytes + HINT_STEP_BYTES - 1) / HINT_STEP_BYTES
    return "allow at least ${megabytes(steps * HINT_STEP_BYTES)} MB"
}

internal fun megabytes(bytes: Long): String = String.format(java.util.Locale.ROOT, "%.2f", bytes / MB.toDouble())

/** Whether what takes [prints] can be loaded, one after the other, and all be there while any of it runs. */
internal fun allStay(prints: List<Footprint>, capBytes: Long): Boolean {
    var resident = 0L
    for (one in prints) {
        if (resident + one.loadingBytes > capBytes) return false
        resident += one.residentBytes
        if (resident + one.workingBytes > capBytes) return false
    }
    return resident + (prints.maxOfOrNull { it.workingBytes } ?: 0L) <= capBytes
}

/**
 * The resident pages in the order in which they should leave when a call needs page [at].
 *
 * A call passes the pages in order and the next one begins at the first, so it is known which is needed last: the one
 * that the call has just passed, before those further back, before those still to come, the last first.
 */
internal fun leavesFirst(resident: Collection<Int>, at: Int): List<Int> =
    resident.filter { it < at }.sortedDescending() + resident.filter { it > at }.sortedDescending()

/** Pages of consecutive pieces, each with at most [limit] bytes of weights and none above the cap. */
private fun packed(stretch: List<Piece>, limit: Long, capBytes: Long): List<List<Piece>> {
    val found = mutableListOf<List<Piece>>()
    for (piece in stretch) {
        val together = found.lastOrNull()?.plus(piece)
        if (together != null && weightBytes(together) <= limit && footprint(together).leastBytes <= capBytes) {
            found[found.lastIndex] = together
        } else {
            found += listOf(piece)
        }
    }
    return found
}

private fun weightBytes(pieces: List<Piece>): Long {
    val sizes = HashMap<String, Long>()
    for (piece in pieces) sizes.putAll(piece.weights)
    return sizes.values.sum()
}
