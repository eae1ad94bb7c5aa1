/**
 * Paths through a supernet, and plans: what a device runs.
 *
 * A plan is one value: the subnet, the exits, the split and what becomes of hard samples, with the server's model named
 * in it. PlanJson.kt reads and writes plans.
 */
package pathweave.sdk.supernet

import kotlin.math.abs
import pathweave.sdk.UsageError

/**
 * One step of a subnet: a block id, the name of one of its renditions, and the input size of the subnet.
 *
 * [inputSize]: of the images at cut point 0; null for the model's own. [home]: the provider and threads that run it
 * ([Home]); empty for the first home of the opened model. It is written only where it is set: SDKs that do not know it
 * read all other plans, and refuse these.
 */
public data class Edge(
    val block: String,
    val rendition: String = FP32,
    val inputSize: SampleSize? = null,
    val home: String = "",
) {
    internal val withoutSize: String
        get() = (if (rendition == FP32) block else "$block@$rendition") + if (home.isEmpty()) "" else "~$home"

    /** The same block and rendition, at the same home, at another input size. */
    public fun at(inputSize: SampleSize?): Edge = copy(inputSize = inputSize)

    /** The same at another home. */
    public fun on(home: String): Edge = copy(home = home)

    override fun toString(): String = if (inputSize == null) withoutSize else "$withoutSize:$inputSize"
}

/** A path 0 → N, written as explicit block ids. All edges have one input size. */
public data class Subnet(val edges: List<Edge>) {
    /** Of the images that it takes; null for the model's own. */
    val inputSize: SampleSize? get() = edges.firstOrNull()?.inputSize

    /** The same blocks and renditions at another input size. */
    public fun at(inputSize: SampleSize?): Subnet = Subnet(edges.map { it.at(inputSize) })

    override fun toString(): String {
        val names = edges.joinToString(" ") { it.withoutSize }
        return if (inputSize == null) names else "$inputSize: $names"
    }
}

/** A threshold that no confidence reaches: the double after 1. */
public val UNREACHABLE_CONFIDENCE: Double = Math.nextUp(1.0)

/** The format number of stored plans; those of another format are refused. */
public const val PLAN_FORMAT: Int = 2

/**
 * The server's model that a plan was made for: its name there, and the digest of what it runs.
 *
 * [model]: empty where the plan means any model. [digest]: of the bundle that the model comes from; empty for a model
 * that states none.
 */
public data class RemoteRef(val model: String = "", val digest: String = "") {
    override fun toString(): String = model.ifEmpty { "any model" }
}

/**
 * An exit of a plan: it answers the samples whose confidence reaches [threshold].
 *
 * An exit whose threshold is [UNREACHABLE_CONFIDENCE] answers nothing by itself. Samples whose confidence lies below
 * [askBelow] leave the path there and go to the plan's server at once; 0: none does. All others go on.
 */
public data class ExitChoice(
    val exit: String,
    val threshold: Double,
    val rendition: String = FP32,
    val askBelow: Double = 0.0,
) {
    /** Whether samples leave the path here by their confidence. */
    val decides: Boolean get() = threshold < UNREACHABLE_CONFIDENCE || askBelow > 0.0

    /** The same, without samples that go to a server. */
    internal fun withoutAsking(): ExitChoice = copy(askBelow = 0.0)
}

/**
 * What answers the samples that a split sends when its server does not: the rest of the plan's subnet, the plan's last
 * exit, or nothing. [key]: as plans are stored.
 */
public enum class Fallback(internal val key: String) {
    SUBNET("subnet"),
    EXIT("exit"),
    ABSTAIN("abstain"),
}

/**
 * The path goes on at the server from cut point [position]; 0 sends the input.
 *
 * [bits]: for each tensor at the cut point, how many bits each of its values takes on the way. [tail]: the path from
 * there to the output that the server runs; it need not be that of the plan's subnet, whose own rest is the fallback.
 * Without a tail, at position 0, the server's model runs as a whole, whatever it is; then [bits] is empty. With another
 * [fallback] than the subnet nothing behind the split is loaded here. [perChannel], [compress]: coding of the packet; as
 * JSON they are written only where they are set.
 */
public data class Split(
    val position: Int,
    val bits: List<Int>,
    val tail: List<Edge>,
    val server: RemoteRef,
    val fallback: Fallback = Fallback.SUBNET,
    val perChannel: Boolean = false,
    val compress: Boolean = false,
) {
    /** Whether a model of the server runs as a whole, not a path of the bundle. */
    val isWhole: Boolean get() = position == 0 && tail.isEmpty()
}

/** Decides which samples are hard, by their logits. Scored in Deciders.kt. */
public sealed interface Decider {
    /** What the score of a sample is compared with. */
    public val threshold: Double

    /** Hard is a sample whose largest class probability lies below [threshold]. */
    public data class MaxConfidence(override val threshold: Double) : Decider

    /** Hard is a sample whose class probabilities have more entropy than [threshold], in nats. */
    public data class Entropy(override val threshold: Double) : Decider

    /** Hard is a sample whose two largest class probabilities differ by less than [threshold]. */
    public data class Margin(override val threshold: Double) : Decider

    /**
     * Hard is a sample whose estimated probability that the answer is right lies below [threshold].
     *
     * The estimate is `sigmoid(bias + Σ weights · features + byAnswer[first] + byRunnerUp[second])`, where first and
     * second are the two most probable classes; of equal ones the lower index comes first. The last two lists have a
     * number per class, or none. With the features top 1 and top 2 alone it is HI's binary logistic regression (§3.3).
     *
     * @throws UsageError there is not one weight per feature, the lists differ in length, or a number is not finite.
     */
    public data class Logistic(
        override val threshold: Double,
        val features: List<LogitFeature>,
        val weights: List<Double>,
        val bias: Double,
        val byAnswer: List<Double> = emptyList(),
        val byRunnerUp: List<Double> = emptyList(),
    ) : Decider {
        init {
            if (features.isEmpty() || features.size != weights.size) {
                throw UsageError("a logistic decider has ${features.size} features and ${weights.size} weights")
            }
            if (byAnswer.size != byRunnerUp.size) {
                throw UsageError("a logistic decider has weights for two numbers of classes")
            }
            if (!(weights + bias + byAnswer + byRunnerUp).all { it.isFinite() }) {
                throw UsageError("a logistic decider has a weight that is not finite")
            }
        }
    }

    /**
     * Hard is a sample whose estimated probability that asking gains nothing lies below [threshold] (Hybrid App. B.2).
     *
     * A network with two [hidden] layers of rectified linear units on 101 meta-features of the logits, and a sigmoid at
     * its end. [weights]: the mean of each feature and one over its spread; then for each of the three layers its
     * matrix [inputs, outputs], row by row, and its biases.
     *
     * @throws UsageError a layer has no or too many neurons, or the weights are not as many as they need or not finite.
     */
    public data class Router(
        override val threshold: Double,
        val hidden: Pair<Int, Int>,
        val weights: List<Float>,
    ) : Decider {
        init {
            val (first, second) = hidden
            if (first !in 1..MOST_ROUTER_NEURONS || second !in 1..MOST_ROUTER_NEURONS) {
                throw UsageError("a router's hidden layers have 1 to $MOST_ROUTER_NEURONS neurons, not $hidden")
            }
            val needed = 2 * ROUTER_FEATURES + (ROUTER_FEATURES + 1) * first + (first + 1) * second + second + 1
            if (weights.size != needed) {
                throw UsageError("a router of $hidden neurons has $needed weights, not ${weights.size}")
            }
            if (!weights.all { it.isFinite() }) throw UsageError("a router has a weight that is not finite")
        }
    }
}

/** Of a router's input. */
internal const val ROUTER_FEATURES: Int = 101

/** Of a hidden layer: a router takes at most 0.4 MB. */
internal const val MOST_ROUTER_NEURONS: Int = 256

/**
 * A number of one sample's logits: the two largest class probabilities, their entropy in nats, the difference of the
 * two largest logits, and the logarithm of the sum of the logits' exponentials.
 */
public enum class LogitFeature(internal val key: String) {
    TOP_1("top_1"),
    TOP_2("top_2"),
    ENTROPY("entropy"),
    LOGIT_MARGIN("logit_margin"),
    LOG_SUM_EXP("log_sum_exp"),
}

/** What a plan sends to a server for a hard sample. */
public sealed interface Sends {
    /** The input of the model. */
    public data object Input : Sends

    /**
     * The activations at cut point [position], which the subnet passes.
     *
     * @throws UsageError the position is not above 0.
     */
    public data class Activations(val position: Int) : Sends {
        init {
            if (position < 1) throw UsageError("activations are sent from cut point 1 on, not from $position")
        }
    }
}

/** What becomes of the samples that no exit answered and that the plan's decider calls hard. */
public sealed interface Hard {
    /** No sample is hard: whatever the subnet answers counts. */
    public data object AnswerLocally : Hard

    /** Hard samples stay without an answer. */
    public data class Abstain(val decider: Decider) : Hard

    /**
     * Hard samples are answered by a server's model.
     *
     * Where activations are sent, the server runs [tail] from their cut point to the output.
     */
    public data class Ask(
        val decider: Decider,
        val server: RemoteRef,
        val sends: Sends = Sends.Input,
        val tail: List<Edge> = emptyList(),
    ) : Hard

    /**
     * Hard samples are answered by a second path on this device (Viola and Jones 2001; Wang et al. 2022).
     *
     * [subnet]: the second path, at an input size of its own. [position]: the cut point from which it goes on with the
     * activations of the first, both being the same up to there; 0: it begins with the input.
     *
     * @throws UsageError the position is below 0.
     */
    public data class Cascade(val decider: Decider, val subnet: Subnet, val position: Int = 0) : Hard {
        init {
            if (position < 0) throw UsageError("a second path goes on from cut point 0 or later, not from $position")
        }
    }
}

/** Of a prior: a factor of half a billion. */
public const val MOST_LOG_RATIO: Double = 20.0

/**
 * The mix of classes on this device, relative to that of the training data (Saerens et al. 2002, eq. 2.4).
 *
 * [logRatios]: for each class the logarithm of its share here over its share there. [temperature]: the logits over it
 * are calibrated. `temperature · logRatios` is added to all logits, those of exits and servers included, before
 * anything decides by them; so thresholds keep their scale.
 *
 * @throws UsageError there is no class, a ratio is not finite or beyond ±20, or the temperature is not above zero.
 */
public data class Prior(val logRatios: List<Double>, val temperature: Double = 1.0) {
    init {
        if (logRatios.isEmpty() || !logRatios.all { abs(it) <= MOST_LOG_RATIO }) {
            throw UsageError("a prior's log ratios must be finite and lie within ±${MOST_LOG_RATIO.toInt()}")
        }
        if (!(temperature.isFinite() && temperature > 0)) {
            throw UsageError("a prior's temperature is ${temperature.toString().removeSuffix(".0")}; it must be above zero")
        }
    }
}

/**
 * What a device runs: a subnet, the exits it may take, where it goes on at a server, what becomes of hard samples.
 *
 * With a split, the subnet up to it runs on the device; its rest is what runs there when the server does not answer,
 * unless the split names another fallback. [prior]: of classes, applied to all logits; plans without one are written as
 * they were before it existed.
 */
public data class Plan(
    val subnet: Subnet,
    val exits: List<ExitChoice> = emptyList(),
    val split: Split? = null,
    val hard: Hard = Hard.AnswerLocally,
    val prior: Prior? = null,
) {
    /** Of the images that it takes; null for the model's own. */
    val inputSize: SampleSize? get() = subnet.inputSize

    /** Whether samples go to a server from an exit, before the end of the path. */
    val asksEarly: Boolean get() = exits.any { it.askBelow > 0.0 }

    /** The path of a cascade's hard samples, null without a cascade. */
    val second: Subnet? get() = (hard as? Hard.Cascade)?.subnet

    /** Whether nothing behind the split ever runs here. */
    internal val isHead: Boolean get() = split != null && split.fallback != Fallback.SUBNET

    /** The same plan with this [prior], or without any. */
    public fun withPrior(prior: Prior?): Plan = copy(prior = prior)

    /** The same without the exits that are not [held]. */
    public fun withExitsOf(held: Collection<String>): Plan = copy(exits = exits.filter { it.exit in held })

    /** In a word or two, for logs and lists: `subnet`, `exits`, `exits + ask early` … */
    val kind: String
        get() {
            val words = listOfNotNull(
                "exits".takeIf { exits.isNotEmpty() },
                split?.let { if (it.position == 0) "remote" else "split" },
                when (hard) {
                    Hard.AnswerLocally -> null
                    is Hard.Abstain -> "abstain"
                    is Hard.Ask -> if (asksEarly) "ask early" else "ask"
                    is Hard.Cascade -> "cascade"
                },
            )
            return if (words.isEmpty()) "subnet" else words.joinToString(" + ")
        }
}
