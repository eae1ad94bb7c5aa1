/** An anytime run: it may be ended at any moment, and has the best answer so far: device_sdk/session/answer.py. */
package pathweave.sdk.session

import java.io.Closeable
import java.util.concurrent.CountDownLatch
import java.util.concurrent.TimeUnit.MILLISECONDS
import kotlin.concurrent.thread
import pathweave.sdk.InputError
import pathweave.sdk.NoAnswerYetError
import pathweave.sdk.UsageError
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.bundles.Task
import pathweave.sdk.data.Image
import pathweave.sdk.data.Inputs
import pathweave.sdk.data.PreparedInputs
import pathweave.sdk.data.RawImages
import pathweave.sdk.data.RawInputs
import pathweave.sdk.data.RawSamples
import pathweave.sdk.data.RawTexts
import pathweave.sdk.data.kinds.SoundPreprocessing
import pathweave.sdk.data.kinds.TensorPreprocessing
import pathweave.sdk.data.kinds.TextInputs
import pathweave.sdk.data.kinds.TextPreparer
import pathweave.sdk.data.kinds.TextPreprocessing
import pathweave.sdk.data.kinds.normalised
import pathweave.sdk.data.kinds.windows
import pathweave.sdk.data.prepare
import pathweave.sdk.execution.Outcome
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.numerics.argmax
import pathweave.sdk.runtimes.StopSignal
import pathweave.sdk.supernet.Hard
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.SampleSize
import pathweave.sdk.supernet.TensorSpec
import pathweave.sdk.supernet.confidence
import pathweave.sdk.supernet.hardSamples
import pathweave.sdk.tasks.Prediction
import pathweave.sdk.tasks.answerTask

/**
 * A plan that runs in a thread of its own, exit by exit. All methods may be called from any thread.
 *
 * Source: anytime inference of MEEdge §3.4. Left alone, it ends with the answer of the device without servers. Closing
 * it stops it and waits until nothing runs any more.
 */
public class Running internal constructor(run: (StopSignal, (Answer) -> Unit) -> Unit) : Closeable {
    private val signal = StopSignal()
    private val first = CountDownLatch(1) // there is an answer, or there will be none

    @Volatile
    private var answer: Answer? = null

    @Volatile
    private var failure: Throwable? = null

    private val thread = thread(isDaemon = true, name = "pathweave-anytime") {
        try {
            run(signal) { latest ->
                answer = latest
                first.countDown()
            }
        } catch (error: Throwable) { // thrown where the answer is fetched
            failure = error
        } finally {
            first.countDown()
        }
    }

    /** Whether there is an answer. */
    public val answered: Boolean get() = answer != null

    /** Whether nothing runs any more. */
    public val done: Boolean get() = !thread.isAlive

    /**
     * The best answer so far: that of the last exit reached, or of the end. [Answer.latencyMs]: when it was there.
     *
     * @throws NoAnswerYetError no exit was reached yet, or the run was stopped before it was.
     * @throws RuntimeFailedError, BlobError, ClosedError: the run failed before it had an answer.
     */
    public fun latest(): Answer {
        answer?.let { return it }
        failure?.let { throw it }
        throw NoAnswerYetError(
            if (signal.isSet) "the run was stopped before its first exit" else "no exit was reached yet",
            "wait for the first answer with waitFirst, or calibrate the plan with earlier exits",
        )
    }

    /** Wait for the first answer, at most [timeoutMs], and return the latest. Throws as [latest]. */
    public fun waitFirst(timeoutMs: Long = Long.MAX_VALUE): Answer {
        first.await(timeoutMs, MILLISECONDS)
        return latest()
    }

    /**
     * Wait for the end, at most [timeoutMs] (0: as long as it takes), and return the latest. Throws as [latest].
     *
     * Python calls it `wait`, which on the JVM every object has, with another meaning.
     */
    public fun waitEnd(timeoutMs: Long = 0): Answer {
        thread.join(timeoutMs)
        return latest()
    }

    /** End it, without waiting: the runtime stops at its next operator, or after the block where it cannot. */
    public fun stop(): Unit = signal.set()

    override fun close() {
        stop()
        thread.join()
    }
}

/** [Answer.source] of a sample that reached the end of the subnet on the device. */
public const val SUBNET: String = "subnet"

/** [Answer.source] of a sample that a server's model, or the tail of a split plan at a server, answered. */
public const val SERVER: String = "server"

/** [Answer.source] of a sample that the plan sends to a server which did not answer: the device's answer. */
public const val FALLBACK: String = "fallback"

/** [Answer.source] of a hard sample that the second path of a cascade answered. */
public const val CASCADE: String = "cascade"

/** [Answer.source] of a hard sample that the plan leaves without an answer. */
public const val ABSTAINED: String = "abstained"

/**
 * The answer to a batch.
 *
 * [output]: logits [batch, classes], or what else the task says ([Task]); [source]: where each answer comes from: `exit <id>`, `subnet`, `server`,
 * `fallback` (the device in place of a server that did not answer) or `abstained` (the plan gives no answer; the logits
 * are the subnet's, or not numbers where nothing of it ran); [latencyMs]: of running the plan, without the preparation of raw images; [plan]: the one that ran.
 */
public class Answer(
    public val output: Tensor,
    public val source: List<String>,
    public val latencyMs: Double,
    private val task: Task,
    public val plan: Plan,
) {
    /** The highest softmax probability of each sample, [batch]; NaN where its logits are not numbers. */
    public val confidence: List<Double> by lazy { confidence(output).toList() }

    /**
     * The name of the most probable class of each sample; null where the plan abstained, where the logits are not numbers,
     * and for tasks whose answer is no class.
     */
    public val labels: List<String?> by lazy {
        if (!task.classifies) return@lazy List(output.batch) { null }
        argmax(output).mapIndexed { sample, index ->
            task.classNames[index].takeUnless { source[sample] == ABSTAINED || confidence[sample].isNaN() }
        }
    }

    /**
     * What the answer says about each sample, by its task: the class of classification; the labels that are there, the
     * surest first; numbers by name; the boxes that are left of those that overlap, the surest first; the classes of a
     * map's pixels with their shares; spans of tokens. Nothing of embeddings, and where the plan abstained.
     */
    public val predictions: List<List<Prediction>> by lazy {
        answerTask(task).predictions(output, task.classNames)
            .mapIndexed { sample, found -> if (source[sample] == ABSTAINED) emptyList() else found }
    }
}

/**
 * Where each answer of [outcome] to [plan] comes from, as [Answer.source] names it, without any server.
 *
 * Hard are samples that reached the end of the subnet. Those that the plan asks a server about are marked as [FALLBACK],
 * and so is the end of a plan that is split.
 */
internal fun sources(plan: Plan, outcome: Outcome): List<String> {
    val end = if (plan.split == null) SUBNET else FALLBACK
    val (decider, mark) = when (val policy = plan.hard) {
        Hard.AnswerLocally, is Hard.Cascade -> null to end // a cascade ends with its first path here
        is Hard.Abstain -> policy.decider to ABSTAINED
        is Hard.Ask -> policy.decider to FALLBACK
    }
    val hard = decider?.let { hardSamples(it, outcome.output) }
    return outcome.answeredBy.mapIndexed { sample, by ->
        val exit = plan.exits.getOrNull(by)
        when {
            exit != null -> "exit ${exit.exit}"
            hard != null && hard[sample] -> mark
            else -> end
        }
    }
}

/**
 * Turns raw images into what a plan of [bundle] takes, and refuses everything else ([InputError]).
 *
 * Every function is told the input size of the plan, null for the model's own.
 */
internal class SampleChecker(private val bundle: Bundle) {
    private val preprocessing = bundle.manifest.preprocessing

    /** What images have to measure; null if the model takes no images. */
    fun imageSize(inputSize: SampleSize?): SampleSize? =
        input(inputSize).shape.takeIf { it.size == 3 }?.let { (_, height, width) -> SampleSize(height, width) }

    private val texts = (preprocessing as? TextPreprocessing)?.let { TextPreparer(it) { name -> bundle.readBlob(name).toByteArray() } }

    /** Raw images as [batch, *input] float32. */
    fun prepare(images: List<Image>, inputSize: SampleSize?): Tensor =
        prepare(images, preprocessing.ofImages(), input(inputSize).shape)

    /** Raw samples of either kind as [batch, *input]. */
    fun prepare(raw: RawSamples, inputSize: SampleSize?): Tensor = when (raw) {
        is RawImages -> prepare(raw.images, inputSize)
        is RawTexts -> prepareTexts(raw.texts, inputSize)
    }

    /** Texts as [batch, rows, tokens] int64. */
    fun prepareTexts(all: List<String>, inputSize: SampleSize?): Tensor = ofTexts().run { padded(tokens(all), inputSize) }

    /** Sounds as [batch, 1, samples] float32. */
    fun prepareSounds(all: List<FloatArray>, inputSize: SampleSize?): Tensor = windows(all, ofSounds(), inputSize)

    /** Values [batch, *input] of a sensor or of features as the model takes them. */
    fun prepareValues(values: Tensor, inputSize: SampleSize?): Tensor =
        valueInputs(values).take((0 until values.batch).toList(), inputSize)

    /** Values to adapt on. */
    fun valueInputs(values: Tensor): Inputs {
        val how = preprocessing as? TensorPreprocessing
            ?: throw UsageError("the model takes ${preprocessing.samples}, not values")
        return inputs(normalised(tensor(values, null), how))
    }

    /** Texts to adapt on. */
    fun textInputs(all: List<String>): Inputs = TextInputs(all, ofTexts())

    /** Sounds to adapt on. */
    fun soundInputs(all: List<FloatArray>): Inputs = PreparedInputs(windows(all, ofSounds(), null))

    private fun ofTexts() = texts ?: throw UsageError("the model takes ${preprocessing.samples}, not texts")

    private fun ofSounds() = preprocessing as? SoundPreprocessing
        ?: throw UsageError("the model takes ${preprocessing.samples}, not sounds")

    /** A prepared tensor [batch, *input], or one sample [*input] as a batch of one. */
    fun tensor(tensor: Tensor, inputSize: SampleSize?): Tensor {
        val input = input(inputSize)
        if (tensor.shape == input.shape) {
            return tensor(Tensor(tensor.dtype, listOf(1) + tensor.shape, tensor.view()), inputSize)
        }
        if (tensor.shape.drop(1) != input.shape) {
            val expected = input.shape.joinToString(", ")
            throw InputError(
                "expected a tensor of shape [batch, $expected], got ${tensor.shape}",
                imageSize(inputSize)?.let { "the plan in use takes images of $it; nothing is resized here" },
            )
        }
        if (tensor.dtype != input.dtype) {
            throw InputError("expected ${input.dtype}, got ${tensor.dtype}", "raw images go to classify")
        }
        return tensor
    }

    /** Samples to adapt on, each checked. */
    fun inputs(images: List<Image>): Inputs {
        val shape = input(null).shape
        val how = preprocessing.ofImages()
        for (image in images) prepare(listOf(image), how, shape)
        return RawInputs(images, how, shape)
    }

    /** The same, prepared before. */
    fun inputs(tensor: Tensor): Inputs {
        val checked = tensor(tensor, null)
        val sample = checked.size / checked.batch
        val broken = (0 until checked.batch).filter { at ->
            (at * sample until (at + 1) * sample).any { !checked[it].isFinite() }
        }
        if (broken.isNotEmpty()) {
            throw InputError(
                "${broken.size} of ${checked.batch} samples have values that are no numbers, number ${broken[0]} first",
                "leave them out",
            )
        }
        return PreparedInputs(checked)
    }

    private fun input(inputSize: SampleSize?): TensorSpec = bundle.supernet.cutPointsAt(inputSize)[0].tensors[0]
}
