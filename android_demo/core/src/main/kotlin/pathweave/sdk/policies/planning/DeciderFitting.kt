/**
 * Fitting deciders on private samples: logistic regression by iteratively reweighted least squares. Pure.
 *
 * Mirrors device_sdk/policies/deciding/decider_fitting.py, without views. Fits are compared by cross fitting: the ease
 * of each sample is what a decider says that learned from the other samples.
 */
package pathweave.sdk.policies.planning

import kotlin.math.abs
import kotlin.math.exp
import kotlin.math.sqrt
import pathweave.sdk.InputError
import pathweave.sdk.execution.ease
import pathweave.sdk.execution.feature
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.numerics.cholesky
import pathweave.sdk.numerics.dot
import pathweave.sdk.numerics.solveLower
import pathweave.sdk.numerics.solveTransposed
import pathweave.sdk.supernet.Decider
import pathweave.sdk.supernet.LogitFeature

internal val TOP_TWO = listOf(LogitFeature.TOP_1, LogitFeature.TOP_2) // HI §3.3
private val ALL_FEATURES = LogitFeature.entries.toList()

private const val RIDGE = 1.0 // of the standardised weights: a few dozen wrong answers must not make them large
private const val FLOOR = 1e-9 // of the curvature
private const val ITERATIONS = 50
private const val MOST_CLASSES = 50 // of more there are too few samples of each
private const val CONVERGED = 1e-8
private const val FOLDS = 5 // of cross fitting
private const val STEEPEST = 30.0 // of the logarithm of the odds while fitting

/**
 * A decider that estimates the probability of [easy] from [logits] [count, classes].
 *
 * The target is usually whether the answer is right; where a server is asked, whether asking it gains nothing. Its
 * threshold is 0.5 until it is tuned. Null if all samples are easy, or none is: there is nothing to learn. [byClass]:
 * learn a number for each class that is most probable, or second, where there are at most 50.
 *
 * @throws InputError the numbers of samples differ, or a logit is not finite.
 */
internal fun fitLogistic(
    logits: Tensor,
    easy: BooleanArray,
    features: List<LogitFeature> = ALL_FEATURES,
    byClass: Boolean = true,
): Decider.Logistic? {
    if (!canBeLearned(logits, easy)) return null
    val perSample = logits.size / logits.batch
    val classes = if (byClass && perSample in 2..MOST_CLASSES) perSample else 0
    val columns = features.map { feature(it, logits) } + if (classes > 0) oneHot(logits, classes) else emptyList()
    val means = columns.map { it.average() }
    val spreads = columns.zip(means) { column, mean -> spread(column, mean) }
    val values = columns.indices.map { at -> DoubleArray(easy.size) { (columns[at][it] - means[at]) / spreads[at] } }
    val fitted = logisticWeights(values, easy)
    val own = DoubleArray(columns.size) { fitted[it + 1] / spreads[it] }
    val bias = fitted[0] - dot(own, means.toDoubleArray())
    val parts = own.toList()
    return Decider.Logistic(
        0.5,
        features,
        parts.take(features.size),
        bias,
        parts.drop(features.size).take(classes),
        parts.drop(features.size + classes),
    )
}

/**
 * The decider of all features that ranks left-out samples best, fitted to all of them: with or without a number per
 * class. Null if all samples are easy, or none is.
 *
 * @throws InputError the numbers of samples differ, or a logit is not finite.
 */
internal fun fitBestLogistic(logits: Tensor, easy: BooleanArray): Decider.Logistic? {
    var best: Pair<Decider.Logistic, Double>? = null
    for (byClass in listOf(true, false)) {
        val eases = crossFittedEases(logits, easy, byClass) ?: continue
        val gain = meanGain(eases, easy)
        if (best != null && gain <= best.second) continue
        best = fitLogistic(logits, easy, byClass = byClass)?.let { it to gain } ?: best
    }
    return best?.first
}

/** The ease of each sample by a decider that learned from four fifths of the others; null: there is nothing to learn. */
internal fun crossFittedEases(logits: Tensor, easy: BooleanArray, byClass: Boolean): DoubleArray? {
    val eases = DoubleArray(easy.size)
    for (fold in 0 until minOf(FOLDS, easy.size)) {
        val (leftOut, seen) = easy.indices.partition { it % FOLDS == fold }
        val decider = fitLogistic(logits.rows(seen), BooleanArray(seen.size) { easy[seen[it]] }, byClass = byClass) ?: return null
        ease(decider, logits.rows(leftOut)).forEachIndexed { at, found -> eases[leftOut[at]] = found }
    }
    return eases
}

/** How many samples that are not [easy] are sent when the hardest are, on the mean of all shares up to a half. */
private fun meanGain(eases: DoubleArray, easy: BooleanArray): Double {
    val order = eases.indices.sortedBy { eases[it] }.take(maxOf(1, eases.size / 2))
    return order.runningFold(0) { sum, at -> sum + if (easy[at]) 0 else 1 }.drop(1).average()
}

private fun canBeLearned(logits: Tensor, easy: BooleanArray): Boolean {
    if (logits.batch != easy.size) throw InputError("there are ${logits.batch} samples and ${easy.size} outcomes")
    if (!logits.floats().all { it.isFinite() }) throw InputError("a logit is not finite")
    return easy.any { it } && !easy.all { it }
}

/** Which class is the most probable, and which the second; of equal ones the lower index comes first. */
private fun oneHot(logits: Tensor, classes: Int): List<DoubleArray> {
    val ranked = List(logits.batch) { sample -> (0 until classes).sortedByDescending { logits[sample * classes + it] }.take(2) }
    return (0..1).flatMap { rank ->
        List(classes) { number -> DoubleArray(ranked.size) { if (ranked[it][rank] == number) 1.0 else 0.0 } }
    }
}

private fun spread(column: DoubleArray, mean: Double): Double {
    val found = sqrt(column.sumOf { (it - mean) * (it - mean) } / column.size)
    return if (found == 0.0) 1.0 else found
}

/** The bias and the weights of the columns [values] that make [targets] most likely. */
private fun logisticWeights(values: List<DoubleArray>, targets: BooleanArray): DoubleArray {
    val design = listOf(DoubleArray(targets.size) { 1.0 }) + values
    val penalty = DoubleArray(design.size) { if (it == 0) 0.0 else RIDGE }
    val weights = DoubleArray(design.size)
    for (round in 0 until ITERATIONS) {
        val odds = odds(design, weights)
        val missing = DoubleArray(targets.size) { (if (targets[it]) 1.0 else 0.0) - odds[it] }
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
