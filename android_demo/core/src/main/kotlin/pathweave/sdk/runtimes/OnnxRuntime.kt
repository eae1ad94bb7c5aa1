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

/**
 * Runs composed ONNX models on the CPU with a fixed number of [threads].
 *
 * [spinUs]: microseconds that a thread of several waits on the processor for work before it sleeps, at most 1,000,000.
 *
 * Throws [UsageError] if it is out of its range.
 */
public class OnnxRuntime(private val threads: Int = 1, spinUs: Int = 0) : Runtime {
    private val environment = quietEnvironment()
    private val spinUs = if (threads > 1) spinUs else 0 // a single thread waits for none

    init {
        if (spinUs !in 0..MOST_SPIN_US) throw UsageError("spinUs is $spinUs", "give 0 to $MOST_SPIN_US microseconds")
    }

    override val identity: String
        get() = "onnxruntime-${environment.version}-CPUExecutionProvider-${threads}t" +
            if (spinUs > 0) "-spin${spinUs}us" else ""

    override val concurrency: Int
        get() = maxOf(1, java.lang.Runtime.getRuntime().availableProcessors() / threads)

    override fun load(stretch: Stretch): LoadedStretch {
        val session = orFailed("refused the model") {
            OrtSession.SessionOptions().use { options ->
                options.setIntraOpNumThreads(threads)
                options.setInterOpNumThreads(1)
                options.setSessionLogLevel(OrtLoggingLevel.ORT_LOGGING_LEVEL_ERROR)
                for ((key, value) in spinning()) options.addConfigEntry(key, value)
                session(composedParts(stretch), options)
            }
        }
        val shapes = if (stretch.freeAxes.isEmpty()) stretch.outputs.map { it.dtype to it.shape } else null
        return OnnxSession(environment, session, stretch.inputs.map { it.name }, stretch.outputs.map { it.name }, shapes)
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

/** One session. ONNX Runtime does not bear a session that is closed twice, or under a run: [access] sees to both. */
private class OnnxSession(
    private val environment: OrtEnvironment,
    session: OrtSession,
    private val inputs: List<String>,
    private val outputs: List<String>,
    private val shapes: List<Pair<DType, List<Int>>>?, // of the outputs; null where they follow the input size
) : LoadedStretch {
    private val access = ReentrantReadWriteLock()
    private var session: OrtSession? = session // guarded by access

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
        orFailed("failed") { work(open) }
    }

    private fun run(session: OrtSession, inputs: List<Tensor>, options: OrtSession.RunOptions?): List<Tensor> {
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
        session?.let { open -> orFailed("failed to close") { open.close() } }
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
