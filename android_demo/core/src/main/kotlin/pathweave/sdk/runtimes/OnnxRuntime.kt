/** ONNX Runtime behind the runtime port. The JVM's jar and Android's archive have the same package. */
package pathweave.sdk.runtimes

import ai.onnxruntime.OnnxJavaType
import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtException
import ai.onnxruntime.OrtLoggingLevel
import ai.onnxruntime.OrtSession
import java.nio.ByteBuffer
import java.util.concurrent.locks.ReentrantReadWriteLock
import kotlin.concurrent.read
import kotlin.concurrent.write
import pathweave.sdk.RuntimeFailedError
import pathweave.sdk.StorageError
import pathweave.sdk.UsageError
import pathweave.sdk.bundles.Stretch
import pathweave.sdk.bundles.composedParts
import pathweave.sdk.bundles.withModelFile
import pathweave.sdk.numerics.DType
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.numerics.rewind
import pathweave.sdk.supernet.Home

/**
 * Runs composed ONNX models at one [home]: with its provider and its number of threads.
 *
 * [spinUs]: microseconds that a thread of several waits on the processor for work before it sleeps, at most 1,000,000.
 * What a provider other than the processor's leaves to the processor is seen in the first run of each session, which
 * fails with [RuntimeFailedError] if that is everything.
 */
public class OnnxRuntime internal constructor(
    private val home: Home,
    spinUs: Int,
    private val provider: OnnxProvider,
) : Runtime {
    /**
     * At [home], by default on the processor with one thread.
     *
     * @throws RuntimeFailedError its provider is not here; the hint names those that are.
     * @throws UsageError [spinUs] is out of its range.
     */
    public constructor(home: Home = Home(), spinUs: Int = 0) : this(home, spinUs, providerOf(home))

    /** On the processor with so many [threads]. */
    public constructor(threads: Int, spinUs: Int = 0) : this(Home(threads = threads), spinUs)

    private val environment = quietEnvironment()
    private val threads = home.threads
    private val spinUs = if (threads > 1) spinUs else 0 // a single thread waits for none

    init {
        if (spinUs !in 0..MOST_SPIN_US) throw UsageError("spinUs is $spinUs", "give 0 to $MOST_SPIN_US microseconds")
    }

    override val identity: String
        get() = "onnxruntime-${environment.version}-${provider.name}-${threads}t" + if (spinUs > 0) "-spin${spinUs}us" else ""

    override val concurrency: Int
        get() = if (home.onProcessor) maxOf(1, java.lang.Runtime.getRuntime().availableProcessors() / threads) else 1

    /** Other providers run on threads, or devices, of their own. */
    override val waitsForThreads: Boolean get() = threads > 1 || !home.onProcessor

    override fun load(stretch: Stretch): LoadedStretch {
        checkHome(stretch)
        val first = if (home.onProcessor) null else FirstRun(home, provider)
        val session = orFailed("refused the model") {
            OrtSession.SessionOptions().use { options ->
                options.setIntraOpNumThreads(threads)
                options.setInterOpNumThreads(1)
                options.setSessionLogLevel(OrtLoggingLevel.ORT_LOGGING_LEVEL_ERROR)
                for ((key, value) in spinning()) options.addConfigEntry(key, value)
                if (provider.oneSample) options.setSymbolicDimensionValue("batch", 1)
                provider.add(options, home)
                first?.watch(options)
                session(composedParts(stretch), options)
            }
        }
        val shapes = if (stretch.freeAxes.isEmpty()) stretch.outputs.map { it.dtype to it.shape } else null
        val (inputs, outputs) = stretch.inputs.map { it.name } to stretch.outputs.map { it.name }
        return OnnxSession(environment, session, inputs, outputs, shapes, provider.oneSample, first)
    }

    private fun checkHome(stretch: Stretch) {
        val elsewhere = stretch.parts.ifEmpty { listOf(stretch) }.map { it.home }.filter { it.isNotEmpty() && it != "$home" }
        if (stretch.parts.isEmpty() && elsewhere.isEmpty()) return
        throw RuntimeFailedError(
            "the plan runs blocks at ${elsewhere.distinct().joinToString(" and ")}, and only $home is open here",
            hint = "open the bundle with homes that include them",
        )
    }

    /** Entries of a session's configuration. */
    internal fun spinning(): Map<String, String> = buildMap {
        for (pool in listOf("intra_op", "inter_op")) {
            put("session.$pool.allow_spinning", if (spinUs > 0) "1" else "0")
            if (spinUs > 0) put("session.$pool.spin_duration_us", spinUs.toString())
        }
    }

    /** Of a model that is these parts; a large one goes through a file instead of the heap, where there is room. */
    private fun session(model: List<ByteBuffer>, options: OrtSession.SessionOptions): OrtSession {
        if (model.sumOf { it.remaining().toLong() } < THROUGH_FILE_FROM_BYTES) return sessionFromHeap(model, options)
        return try {
            withModelFile(model) { path -> environment.createSession(path.path, options) }
        } catch (full: StorageError) {
            try {
                sessionFromHeap(model, options)
            } catch (_: OutOfMemoryError) {
                throw full
            }
        }
    }

    private fun sessionFromHeap(model: List<ByteBuffer>, options: OrtSession.SessionOptions): OrtSession {
        val bytes = ByteBuffer.allocate(model.sumOf { it.remaining() })
        model.forEach { bytes.put(it.duplicate()) }
        return environment.createSession(bytes.array(), options)
    }
}

/** What ran where, of what was loaded at a home that is not the processor; null until it ran. */
internal interface Placed {
    val kernels: Kernels?
}

/** One session. ONNX Runtime does not bear a session that is closed twice, or under a run: [access] sees to both. */
private class OnnxSession(
    private val environment: OrtEnvironment,
    session: OrtSession,
    private val inputs: List<String>,
    private val outputs: List<String>,
    private val shapes: List<Pair<DType, List<Int>>>?, // of the outputs; null where they follow the input size
    private val oneSample: Boolean, // a batch runs sample by sample
    private val first: FirstRun?, // watches what ran where; null on the processor
) : LoadedStretch, Placed {
    private val access = ReentrantReadWriteLock()
    private var session: OrtSession? = session // guarded by access

    override val kernels: Kernels? get() = first?.kernels

    override fun run(inputs: List<Tensor>): List<Tensor> = running(inputs) { open -> run(open, inputs, null) }

    /** The runtime looks at its terminate flag between two operators. */
    override fun runUntil(inputs: List<Tensor>, stop: StopSignal): List<Tensor>? {
        if (stop.isSet) return null
        return try {
            running(inputs) { open ->
                OrtSession.RunOptions().use { options ->
                    stop.endingBy({ options.setTerminate(true) }) { run(open, inputs, options) }
                }
            }
        } catch (error: RuntimeFailedError) {
            if (stop.isSet) null else throw error
        }
    }

    private fun <T> running(inputs: List<Tensor>, work: (OrtSession) -> T): T = access.read {
        val open = session ?: throw RuntimeFailedError("the session was closed")
        if (inputs.size != this.inputs.size) {
            throw RuntimeFailedError("the model takes ${this.inputs.size} tensors, got ${inputs.size}")
        }
        orFailed("failed") { if (first == null) work(open) else first.on(open) { work(open) } }
    }

    private fun run(session: OrtSession, inputs: List<Tensor>, options: OrtSession.RunOptions?): List<Tensor> {
        if (!oneSample || inputs[0].batch == 1) return runBatch(session, inputs, options)
        val runs = (0 until inputs[0].batch).map { row -> runBatch(session, inputs.map { it.rows(listOf(row)) }, options) }
        return outputs.indices.map { number -> Tensor.stacked(runs.map { it[number] }) }
    }

    private fun runBatch(session: OrtSession, inputs: List<Tensor>, options: OrtSession.RunOptions?): List<Tensor> {
        val given = LinkedHashMap<String, OnnxTensor>()
        try {
            for ((name, tensor) in this.inputs.zip(inputs)) given[name] = toOnnx(tensor)
            if (shapes != null) {
                val answers = shapes.map { (dtype, shape) -> empty(dtype, listOf(inputs[0].batch) + shape) }
                return runInto(session, given, answers, options)
            }
            return session.run(given, outputs.toSet(), options).use { result ->
                outputs.map { fromOnnx(result[it].get() as OnnxTensor) }
            }
        } finally {
            given.values.forEach(OnnxTensor::close)
        }
    }

    /** The runtime writes its answers to where they stay, without a copy. */
    private fun runInto(
        session: OrtSession,
        given: Map<String, OnnxTensor>,
        answers: List<Tensor>,
        options: OrtSession.RunOptions?,
    ): List<Tensor> {
        val places = LinkedHashMap<String, OnnxTensor>()
        try {
            for ((name, tensor) in outputs.zip(answers)) places[name] = toOnnx(tensor)
            session.run(given, emptySet(), places, options).close()
            return answers
        } finally {
            places.values.forEach(OnnxTensor::close)
        }
    }

    private fun empty(dtype: DType, shape: List<Int>): Tensor {
        val bytes = shape.fold(dtype.bytes.toLong()) { size, extent -> size * extent }
        return Tensor(dtype, shape, Tensor.allocate(Math.toIntExact(bytes))).also { collectAfter(bytes) }
    }

    private fun toOnnx(tensor: Tensor): OnnxTensor {
        val shape = LongArray(tensor.shape.size) { tensor.shape[it].toLong() }
        return OnnxTensor.createTensor(environment, tensor.view(), shape, ELEMENT_TYPES.getValue(tensor.dtype))
    }

    private fun fromOnnx(tensor: OnnxTensor): Tensor {
        val dtype = ELEMENT_TYPES.entries.find { it.value == tensor.info.type }?.key
            ?: throw RuntimeFailedError("ONNX Runtime answered with a tensor of type ${tensor.info.type}")
        val copy = tensor.byteBuffer // on the heap, from where the next segment could not take it
        val elements = Tensor.allocate(copy.remaining()).put(copy).also(::rewind)
        return Tensor(dtype, tensor.info.shape.map { it.toInt() }, elements)
    }

    override fun close(): Unit = access.write {
        session?.let { open ->
            orFailed("failed to close") {
                first?.end(open)
                open.close()
            }
        }
        session = null
    }
}

private val ELEMENT_TYPES = mapOf(
    DType.FLOAT32 to OnnxJavaType.FLOAT,
    DType.FLOAT16 to OnnxJavaType.FLOAT16,
    DType.INT64 to OnnxJavaType.INT64,
    DType.INT32 to OnnxJavaType.INT32,
    DType.INT8 to OnnxJavaType.INT8,
    DType.UINT8 to OnnxJavaType.UINT8,
    DType.BOOL to OnnxJavaType.BOOL,
)

/** Turns what the binding throws into ours; besides its own exception it throws two unchecked ones. */
private inline fun <T> orFailed(what: String, work: () -> T): T = try {
    work()
} catch (error: OrtException) {
    throw failure(what, error)
} catch (error: IllegalArgumentException) {
    throw failure(what, error)
} catch (error: IllegalStateException) {
    throw failure(what, error)
}

private fun failure(what: String, error: Exception): RuntimeFailedError {
    val reason = error.message?.lineSequence()?.first() ?: error.javaClass.simpleName
    return RuntimeFailedError("ONNX Runtime $what: ${reason.take(300)}", error)
}

private const val MOST_SPIN_US = 1_000_000
private const val THROUGH_FILE_FROM_BYTES = 32L shl 20
private const val COLLECTED_BYTES = 256L shl 20
private val uncollected = java.util.concurrent.atomic.AtomicLong()

/**
 * Runs the collector whenever 256 MB of answers were made.
 *
 * They lie off the heap, where a JVM's collector does not see how much is waiting for it: it would begin at as many
 * bytes as the heap may have (measured on a search with 300 images on ResNet-20: 3.8 GB resident; so, 0.7 GB).
 */
private fun collectAfter(bytes: Long) {
    if (uncollected.addAndGet(bytes) < COLLECTED_BYTES) return
    uncollected.set(0)
    System.gc()
}
