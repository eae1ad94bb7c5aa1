/** One class for each token of a text, such as the names in it. */
package pathweave.sdk.tasks

import pathweave.sdk.InputError
import pathweave.sdk.numerics.Tensor

private const val OUTSIDE = "O" // the class of words that belong to no span
private const val MARKS = "BIESLU" // of IOB2, and of schemes that mark the end of a span and spans of one word too
private const val CONTINUING = "IEL"
private const val NO_CLASS = -1
private const val COMPARED = 32 // first tokens of a text, whose logits are compared

/**
 * The share of tokens with the correct class: logits [count, classes, tokens], all equal at a token that a text does not
 * have. Answers at a shorter length leave out the last tokens, which then count as wrong.
 */
internal open class TokensRight(private val classes: Int) : AnswerTask {
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

    /** Spans; where no class is O, the class of each token, marks of the tokenizer included. */
    override fun predictions(answers: Tensor, classNames: List<String>): List<List<Prediction>> =
        standIn(answers).classes.map { text ->
            val tokens = text.indices.filter { text[it] >= 0 }
            spans(tokens.map { classNames[text[it]] })
                .map { (span, kind) -> Prediction(kind, tokens = tokens[span.first]..tokens[span.last]) }
        }

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
    protected fun found(logits: FloatArray): IntArray {
        val size = logits.size / classes
        return IntArray(size) { token ->
            var best = 0
            for (label in 1 until classes) if (logits[label * size + token] > logits[best * size + token]) best = label
            best
        }
    }
}

/**
 * F1 of the spans that tokens of one kind form, of models with a class O for tokens outside of them.
 *
 * Classes B-NAME and I-NAME begin and continue a span of NAME (IOB2, or with ends and spans of one word marked); other
 * classes are spans of one token. A span counts if its tokens and its kind are those of the targets. Tokens that do not
 * count are passed over. A text without spans, of which none are found, scores 1.
 */
internal class SpansFound(classNames: List<String>) : TokensRight(classNames.size) {
    override val scoreName get() = "span F1"

    private val names = classNames

    override fun scores(answers: Tensor, targets: Targets): FloatArray {
        val wanted = (targets as TokenTargets).classes
        return flattened(answers).mapIndexed { text, logits ->
            val found = found(logits)
            val counted = wanted[text].indices.filter { wanted[text][it] >= 0 }
            val there = spans(counted.map { names[wanted[text][it]] })
            val own = spans(counted.map { if (it < found.size) names[found[it]] else OUTSIDE })
            val both = there.size + own.size
            if (both == 0) 1f else (2.0 * there.intersect(own.toSet()).size / both).toFloat()
        }.toFloatArray()
    }
}

/** The spans that tokens of these classes form, and their kinds. */
private fun spans(classNames: List<String>): List<Pair<IntRange, String>> {
    val spans = ArrayList<Pair<IntRange, String>>()
    for ((token, name) in classNames.withIndex()) {
        val (mark, kind) = tagParts(name)
        val last = spans.lastOrNull()
        if (mark != null && mark in CONTINUING && last?.second == kind && last.first.last == token - 1) {
            spans[spans.lastIndex] = last.first.first..token to kind
        } else if (kind != OUTSIDE) {
            spans += token..token to kind
        }
    }
    return spans
}

/** The mark of a class, such as B or I, or null, and the kind of span that it names. */
private fun tagParts(className: String): Pair<Char?, String> {
    val isMarked = className.length > "B-".length && className[0] in MARKS && className[1] == '-'
    return if (isMarked) className[0] to className.substring(2) else null to className
}

/** The task of a model with these classes: spans are judged where one of them is O, else tokens. */
internal fun tokensTask(classNames: List<String>): AnswerTask =
    if (OUTSIDE in classNames) SpansFound(classNames) else TokensRight(classNames.size)
