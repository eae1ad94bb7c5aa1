/** One class for each token of a text, such as the names in it. */
package pathweave.sdk.tasks

import pathweave.sdk.InputError
import pathweave.sdk.numerics.Tensor

private const val NO_CLASS = -1
private const val COMPARED = 32 // first tokens of a text, whose logits are compared

/**
 * The share of tokens with the correct class: logits [count, classes, tokens], all equal at a token that a text does not
 * have. Answers at a shorter length leave out the last tokens, which then count as wrong.
 */
internal class TokensRight(private val classes: Int) : AnswerTask {
    override val scoreName get() = "token accuracy"

    override fun check(targets: Targets, count: Int) {
        val texts = ofKind<TokenTargets>(targets, count, "a class for each token").classes
        if (texts.any { text -> text.any { it >= classes } }) {
            throw InputError("classes of tokens must lie between 0 and ${classes - 1}, or below 0 for none")
        }
    }

    override fun scores(answers: Tensor, targets: Targets): FloatArray {
        val wanted = (targets as TokenTargets).classes
        return flattened(answers).mapIndexed { text, logits ->
            val found = found(logits)
            val counted = wanted[text].count { it >= 0 }
            val right = found.indices.count { it < wanted[text].size && wanted[text][it] >= 0 && found[it] == wanted[text][it] }
            if (counted == 0) 1f else (right.toDouble() / counted).toFloat()
        }.toFloatArray()
    }

    override fun standIn(answers: Tensor): TokenTargets = TokenTargets(
        flattened(answers).map { logits ->
            val size = logits.size / classes
            val found = found(logits)
            IntArray(size) { token ->
                if ((1 until classes).all { logits[it * size + token] == logits[token] }) NO_CLASS else found[token]
            }
        },
    )

    override fun compared(answers: Tensor): List<FloatArray> = flattened(answers).map { logits ->
        val size = logits.size / classes
        val compared = FloatArray(classes * COMPARED)
        for (token in 0 until minOf(size, COMPARED)) {
            val mean = ((0 until classes).sumOf { logits[it * size + token].toDouble() } / classes).toFloat()
            for (channel in 0 until classes) compared[channel * COMPARED + token] = logits[channel * size + token] - mean
        }
        compared
    }

    /** The class of the largest logit of each token, the first of equals. */
    private fun found(logits: FloatArray): IntArray {
        val size = logits.size / classes
        return IntArray(size) { token ->
            var best = 0
            for (label in 1 until classes) if (logits[label * size + token] > logits[best * size + token]) best = label
            best
        }
    }
}
