/** Deciders that are fitted to samples by logistic regression. Pure. Mirrors `policies/deciding/decider_fitting.py`. */
package pathweave.sdk.policies.planning

import kotlin.math.abs
import kotlin.math.exp
import kotlin.math.sqrt
import pathweave.sdk.InputError
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.numerics.cholesky
import pathweave.sdk.numerics.dot
import pathweave.sdk.numerics.solveLower
import pathweave.sdk.numerics.solveTransposed
import pathweave.sdk.supernet.Decider
import pathweave.sdk.supernet.LogitFeature
import pathweave.sdk.supernet.ease
import pathweave.sdk.supernet.feature

internal val TOP_TWO = listOf(LogitFeature.TOP_1, LogitFeature.TOP_2) // HI §3.3
private val ALL_FEATURES = LogitFeature.entries.toList()

private const val RIDGE = 1.0 // of the standardised weights: a few dozen wrong answers must not make them large
private const val CLASS_RIDGE = 1.0 // of a class's log-odds, whose prior has this precision: a class seen once moves little
private const val FLOOR = 1e-9 // of the curvature
private const val ITERATIONS = 50
private const val CONVERGED = 1e-8
private const val FOLDS = 5 // of cross fitting
private const val STEEPEST = 30.0 // of the logarithm of the odds while fitting

/**
 * Effects of asking a server, or of leaving samples without an answer: [easy] ones gain nothing by it, [losses] have
 * their right answer replaced by a wrong one; null where nothing can be lost.
 */
internal class Outcomes(val easy: BooleanArray, val losses: BooleanArray? = null) {
    /** 1 for a gain, −1 for a loss, else 0. */
    val gains = IntArray(easy.size) { if (!easy[it]) 1 else if (losses?.get(it) == true) -1 else 0 }

    fun at(samples: List<Int>) = Outcomes(
        BooleanArray(samples.size) { easy[samples[it]] },
        losses?.let { lost -> BooleanArray(samples.size) { lost[samples[it]] } },
    )

    fun withoutLosses() = Outcomes(easy)
}

/**
 * A decider that estimates from [logits] [count, classes] how likely samples are easy.
 *
 * Easy is usually a right answer; where a server is asked, that asking it gains nothing. With losses the estimate
 * is (1 − mean gain) / 2: samples are ranked by the gain of asking less its losses. The threshold is 0.5 until it is
 * tuned. Null if all samples are easy, or none is: there is nothing to learn. [byClass]: learn a number for each class
 * that is most probable, or second; each has a normal prior of variance 1 around 0.
 *
 * @throws InputError the numbers of samples differ, or a logit is not finite.
 */
internal fun fitLogistic(
    logits: Tensor,
    outcomes: Outcomes,
    features: List<LogitFeature> = ALL_FEATURES,
    byClass: Boolean = true,
): Decider.Logistic? {
    if (!canBeLearned(logits, outcomes.easy)) return null
    val perSample = logits.size / logits.batch
    val classes = if (byClass && perSample > 1) perSample else 0
    val columns = features.map { feature(it, logits) }
    val means = columns.map { it.average() }
    val spreads = columns.zip(means) { column, mean -> spread(column, mean) }
    val values = columns.indices.map { at -> DoubleArray(logits.batch) { (columns[at][it] - means[at]) / spreads[at] } }
    val ofClasses = if (classes > 0) classColumns(logits, classes) else emptyMap()
    val penalties = List(values.size) { RIDGE } + List(ofClasses.size) { CLASS_RIDGE }
    val fitted = logisticWeights(values + ofClasses.values, targets(outcomes), penalties)
    val own = DoubleArray(columns.size) { fitted[it + 1] / spreads[it] }
    val numbers = DoubleArray(2 * classes)
    ofClasses.keys.forEachIndexed { at, place -> numbers[place] = fitted[1 + columns.size + at] }
    val bias = fitted[0] - dot(own, means.toDoubleArray())
    return Decider.Logistic(0.5, features, own.toList(), bias, numbers.take(classes), numbers.drop(classes))
}

/** 1 for easy samples, else 0; with losses, 1 for these, one half for those whose outcome asking leaves. */
private fun targets(outcomes: Outcomes): DoubleArray {
    val gains = outcomes.gains
    if (outcomes.losses == null) return DoubleArray(gains.size) { if (gains[it] > 0) 0.0 else 1.0 }
    return DoubleArray(gains.size) { (1 - gains[it]) / 2.0 }
}

/** A decider, and the ease of each sample when it is left out. */
internal class Fitted(val decider: Decider.Logistic, val eases: DoubleArray)

/**
 * The decider of all features that ranks left-out samples best, fitted to all of them: with or without a number per
 * class, to gains alone or to gains less losses. Null if all samples are easy, or none is.
 *
 * @throws InputError the numbers of samples differ, or a logit is not finite.
 */
internal fun fitBestLogistic(logits: Tensor, outcomes: Outcomes): Fitted? {
    var best: Pair<Fitted, Double>? = null
    val losesSome = outcomes.losses?.any { it } == true
    for (learned in listOfNotNull(outcomes.withoutLosses(), outcomes.takeIf { losesSome })) {
        for (byClass in listOf(true, false)) {
            val eases = crossFittedEases(logits, learned, byClass) ?: continue
            val gain = meanGain(eases, outcomes.gains)
            if (best != null && gain <= best.second) continue
            best = fitLogistic(logits, learned, byClass = byClass)?.let { Fitted(it, eases) to gain } ?: best
        }
    }
    return best?.first
}

/** The ease of each sample by a decider that learned from four fifths of the others; null: there is nothing to learn. */
internal fun crossFittedEases(logits: Tensor, outcomes: Outcomes, byClass: Boolean): DoubleArray? {
    val eases = DoubleArray(outcomes.easy.size)
    for (fold in 0 until minOf(FOLDS, eases.size)) {
        val (leftOut, seen) = eases.indices.partition { it % FOLDS == fold }
        val decider = fitLogistic(logits.rows(seen), outcomes.at(seen), byClass = byClass) ?: return null
        ease(decider, logits.rows(leftOut)).forEachIndexed { at, found -> eases[leftOut[at]] = found }
    }
    return eases
}

/** The [gains] less losses when the hardest samples are sent, on the mean of all shares up to a half. */
private fun meanGain(eases: DoubleArray, gains: IntArray): Double {
    val order = eases.indices.sortedBy { eases[it] + 0.0 }.take(maxOf(1, eases.size / 2)) // −0 equals 0
    return order.runningFold(0) { sum, at -> sum + gains[at] }.drop(1).average()
}

private val SHARES = listOf(0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0) // of the samples that asking is tried with

/** Whether asking about some share of the hardest samples gains, by more than a standard error. */
internal fun askingPays(eases: DoubleArray, gains: IntArray): Boolean {
    val order = eases.indices.sortedBy { eases[it] + 0.0 }
    val net = order.runningFold(0) { sum, at -> sum + gains[at] }
    val changed = order.runningFold(0) { sum, at -> sum + abs(gains[at]) }
    return SHARES.map { maxOf(1, Math.rint(it * gains.size).toInt()) }.any { net[it] > sqrt(changed[it].toDouble()) }
}

private fun canBeLearned(logits: Tensor, easy: BooleanArray): Boolean {
    if (logits.batch != easy.size) throw InputError("there are ${logits.batch} samples and ${easy.size} outcomes")
    if (!logits.floats().all { it.isFinite() }) throw InputError("a logit is not finite")
    return easy.any { it } && !easy.all { it }
}

/**
 * Whether each class that is some sample's first, or second, is that of each sample, by its place among twice the
 * classes. Of equal ones the lower index comes first.
 */
private fun classColumns(logits: Tensor, classes: Int): Map<Int, DoubleArray> {
    val found = sortedMapOf<Int, DoubleArray>()
    for (sample in 0 until logits.batch) {
        val ranked = (0 until classes).sortedByDescending { logits[sample * classes + it] }
        for (rank in 0..1) found.getOrPut(rank * classes + ranked[rank]) { DoubleArray(logits.batch) }[sample] = 1.0
    }
    return found
}

private fun spread(column: DoubleArray, mean: Double): Double {
    val found = sqrt(column.sumOf { (it - mean) * (it - mean) } / column.size)
    return if (found == 0.0) 1.0 else found
}

/** The bias and the weights of the columns [values] that make [targets] most likely, each with its penalty. */
private fun logisticWeights(values: List<DoubleArray>, targets: DoubleArray, penalties: List<Double>): DoubleArray {
    val design = listOf(DoubleArray(targets.size) { 1.0 }) + values
    val penalty = (listOf(0.0) + penalties).toDoubleArray()
    val weights = DoubleArray(design.size)
    for (round in 0 until ITERATIONS) {
        val odds = odds(design, weights)
        val missing = DoubleArray(targets.size) { targets[it] - odds[it] }
        val gradient = DoubleArray(design.size) { dot(design[it], missing) - penalty[it] * weights[it] }
        val root = cholesky(curvature(design, odds, penalty))
        val change = solveTransposed(root, solveLower(root, gradient))
        for (at in weights.indices) weights[at] += change[at]
        if (change.maxOf(::abs) < CONVERGED) break
    }
    return weights
}

private fun odds(design: List<DoubleArray>, weights: DoubleArray): DoubleArray {
    val totals = DoubleArray(design[0].size)
    for ((column, weight) in design.zip(weights.asList())) for (at in totals.indices) totals[at] += weight * column[at]
    return DoubleArray(totals.size) { 1.0 / (1.0 + exp(-totals[it].coerceIn(-STEEPEST, STEEPEST))) }
}

/** Its lower triangle, by rows. */
private fun curvature(design: List<DoubleArray>, odds: DoubleArray, penalty: DoubleArray) = Array(design.size) { row ->
    val weighted = DoubleArray(odds.size) { design[row][it] * odds[it] * (1 - odds[it]) }
    DoubleArray(design.size) { column ->
        if (column > row) 0.0 else dot(weighted, design[column]) + if (column == row) penalty[row] + FLOOR else 0.0
    }
}
