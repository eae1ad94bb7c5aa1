/** Subnets and plans as JSON: the bytes that Python and Kotlin both write (docs/bundle_format.md). */
package pathweave.sdk.supernet

import java.math.BigInteger
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.util.Base64
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonPrimitive
import pathweave.sdk.UsageError
import pathweave.sdk.files.JsonError
import pathweave.sdk.files.JsonPlace
import pathweave.sdk.files.decodeJson
import pathweave.sdk.files.json
import pathweave.sdk.files.jsonOf

private val HOME_NAME = Regex("[a-z0-9-]{0,64}")
private const val BASE64_GROUP = 4 // characters
private const val NEWER = "it was written by another version of Pathweave: adapt again, or take the SDK that wrote it"

/** [subnet] as JSON in UTF-8, the same bytes as in Python. */
public fun encodeSubnet(subnet: Subnet): ByteArray = json(subnet).toString().toByteArray()

/**
 * The subnet that [data] holds. Whether a bundle has such a path, [Supernet.check] says.
 *
 * @throws UsageError not JSON, not a subnet, or with a field that this SDK does not know; says what is wrong and where.
 */
public fun decodeSubnet(data: ByteArray): Subnet = try {
    subnet(decodeJson(data))
} catch (error: JsonError) {
    throw UsageError("this is no subnet: ${error.message}")
}

/**
 * [plan] as JSON in UTF-8, every field written out, the same bytes as in Python.
 *
 * @throws UsageError a threshold is infinite or not a number, which JSON cannot hold.
 */
public fun encodePlan(plan: Plan): ByteArray = jsonOf(*fields(plan)).toString().toByteArray()

private fun fields(plan: Plan): Array<Pair<String, JsonElement>> = listOfNotNull(
    "format" to JsonPrimitive(PLAN_FORMAT),
    "subnet" to json(plan.subnet),
    "exits" to JsonArray(plan.exits.map(::json)),
    "split" to (plan.split?.let(::json) ?: JsonNull),
    "hard" to json(plan.hard),
    plan.prior?.let { "prior" to json(it) },
).toTypedArray()

/**
 * The plan that [data] holds. Whether a bundle has such a plan, [Supernet.checkPlan] says.
 *
 * @throws UsageError not JSON, not a plan, of another format, or with a kind or a field that this SDK does not know;
 *   says what is wrong and where.
 */
public fun decodePlan(data: ByteArray): Plan = try {
    val root = decodeJson(data)
    val format = root.optional("format")?.integer()
    if (format != BigInteger.valueOf(PLAN_FORMAT.toLong())) {
        val found = if (format == null) "the first format" else "format $format"
        throw UsageError("this is a plan of $found, not of format $PLAN_FORMAT", NEWER)
    }
    plan(root)
} catch (error: JsonError) {
    throw UsageError("this is no plan: ${error.message}", NEWER)
}

private fun json(prior: Prior): JsonElement = jsonOf(
    "log_ratios" to JsonArray(prior.logRatios.map(::json)),
    "temperature" to json(prior.temperature),
)

private fun json(subnet: Subnet): JsonElement = jsonOf("edges" to json(subnet.edges))

private fun json(edges: List<Edge>): JsonElement = JsonArray(edges.map(::json))

internal fun json(edge: Edge): JsonElement = jsonOf(
    *listOfNotNull(
        "block" to JsonPrimitive(edge.block),
        "rendition" to JsonPrimitive(edge.rendition),
        "input_size" to JsonArray(edge.inputSize?.extents.orEmpty().map(::JsonPrimitive)),
        ("home" to JsonPrimitive(edge.home)).takeIf { edge.home.isNotEmpty() },
    ).toTypedArray(),
)

private fun json(choice: ExitChoice): JsonElement = jsonOf(
    "exit" to JsonPrimitive(choice.exit),
    "threshold" to json(choice.threshold),
    "rendition" to JsonPrimitive(choice.rendition),
    "ask_below" to json(choice.askBelow),
)

private fun json(split: Split): JsonElement = jsonOf(
    *listOfNotNull(
        "position" to JsonPrimitive(split.position),
        "bits" to JsonArray(split.bits.map(::JsonPrimitive)),
        "tail" to json(split.tail),
        "server" to json(split.server),
        "fallback" to JsonPrimitive(split.fallback.key),
        ("per_channel" to JsonPrimitive(true)).takeIf { split.perChannel },
        ("compress" to JsonPrimitive(true)).takeIf { split.compress },
    ).toTypedArray(),
)

private fun json(server: RemoteRef): JsonElement = jsonOf(
    "model" to JsonPrimitive(server.model),
    "digest" to JsonPrimitive(server.digest),
)

private fun json(hard: Hard): JsonElement = when (hard) {
    Hard.AnswerLocally -> kind("answer")
    is Hard.Abstain -> kind("abstain", "decider" to json(hard.decider))
    is Hard.Ask -> kind(
        "ask",
        "decider" to json(hard.decider),
        "server" to json(hard.server),
        "sends" to when (val sends = hard.sends) {
            Sends.Input -> JsonPrimitive("input")
            is Sends.Activations -> JsonPrimitive(sends.position)
        },
        "tail" to json(hard.tail),
    )
    is Hard.Cascade -> kind(
        "cascade",
        "decider" to json(hard.decider),
        "subnet" to json(hard.subnet),
        "position" to JsonPrimitive(hard.position),
    )
}

/** Its tag in JSON. */
internal fun kindOf(decider: Decider): String = when (decider) {
    is Decider.MaxConfidence -> "max_confidence"
    is Decider.Entropy -> "entropy"
    is Decider.Margin -> "margin"
    is Decider.Logistic -> "logistic"
    is Decider.Router -> "router"
}

private fun json(decider: Decider): JsonElement {
    val name = kindOf(decider)
    val threshold = "threshold" to json(decider.threshold)
    return when (decider) {
        is Decider.MaxConfidence -> kind(name, threshold)
        is Decider.Entropy -> kind(name, threshold)
        is Decider.Margin -> kind(name, threshold)
        is Decider.Logistic -> kind(
            name,
            threshold,
            "features" to JsonArray(decider.features.map { JsonPrimitive(it.key) }),
            "weights" to JsonArray(decider.weights.map(::json)),
            "bias" to json(decider.bias),
            "by_answer" to JsonArray(decider.byAnswer.map(::json)),
            "by_runner_up" to JsonArray(decider.byRunnerUp.map(::json)),
        )
        is Decider.Router -> kind(
            name,
            threshold,
            "hidden" to JsonArray(decider.hidden.toList().map(::JsonPrimitive)),
            "weights" to JsonPrimitive(encodedFloats(decider.weights)),
        )
    }
}

private fun kind(name: String, vararg fields: Pair<String, JsonElement>) =
    jsonOf("kind" to JsonPrimitive(name), *fields)

private fun plan(place: JsonPlace): Plan {
    place.only("format", "subnet", "exits", "split", "hard", "prior")
    return Plan(
        subnet = subnet(place["subnet"]),
        exits = place.optional("exits")?.items().orEmpty().map(::exitChoice),
        split = place.nullable("split")?.let(::split),
        hard = place.optional("hard")?.let(::hard) ?: Hard.AnswerLocally,
        prior = place.optional("prior")?.let(::prior),
    )
}

private fun prior(place: JsonPlace): Prior {
    place.only("log_ratios", "temperature")
    return Prior(
        logRatios = place["log_ratios"].items().map { it.number() },
        temperature = place.optional("temperature")?.number() ?: 1.0,
    )
}

private fun subnet(place: JsonPlace) = Subnet(edges(place.only("edges")["edges"]))

private fun edges(place: JsonPlace) = place.items().map(::edge)

internal fun edge(place: JsonPlace): Edge {
    place.only("block", "rendition", "input_size", "home")
    return Edge(
        block = place["block"].text(),
        rendition = place.optional("rendition")?.text() ?: FP32,
        inputSize = place.optional("input_size")?.takeIf { it.items().isNotEmpty() }?.sides(),
        home = place.optional("home")?.let(::homeName).orEmpty(),
    )
}

private fun homeName(place: JsonPlace): String =
    place.text().also { if (!HOME_NAME.matches(it)) throw place.wrong("the name of a home") }

private fun exitChoice(place: JsonPlace): ExitChoice {
    place.only("exit", "threshold", "rendition", "ask_below")
    return ExitChoice(
        exit = place["exit"].text(),
        threshold = place["threshold"].number(),
        rendition = place.optional("rendition")?.text() ?: FP32,
        askBelow = place.optional("ask_below")?.number() ?: 0.0,
    )
}

private fun split(place: JsonPlace): Split {
    place.only("position", "bits", "tail", "server", "fallback", "per_channel", "compress")
    return Split(
        position = place["position"].int(),
        bits = place["bits"].items().map { it.int() },
        tail = edges(place["tail"]),
        server = server(place["server"]),
        fallback = place.optional("fallback")?.oneOf { key -> Fallback.entries.find { it.key == key } }
            ?: Fallback.SUBNET,
        perChannel = place.optional("per_channel")?.flag() ?: false,
        compress = place.optional("compress")?.flag() ?: false,
    )
}

private fun server(place: JsonPlace): RemoteRef {
    place.only("model", "digest")
    return RemoteRef(
        model = place.optional("model")?.text().orEmpty(),
        digest = place.optional("digest")?.text().orEmpty(),
    )
}

private fun hard(place: JsonPlace): Hard = place["kind"].oneOf { kind ->
    when (kind) {
        "answer" -> Hard.AnswerLocally.also { place.only("kind") }
        "abstain" -> Hard.Abstain(decider(place.only("kind", "decider")["decider"]))
        "ask" -> ask(place.only("kind", "decider", "server", "sends", "tail"))
        "cascade" -> cascade(place.only("kind", "decider", "subnet", "position"))
        else -> null
    }
}

private fun ask(place: JsonPlace) = Hard.Ask(
    decider = decider(place["decider"]),
    server = server(place["server"]),
    sends = place.optional("sends")?.let(::sends) ?: Sends.Input,
    tail = place.optional("tail")?.let(::edges).orEmpty(),
)

private fun cascade(place: JsonPlace) = Hard.Cascade(
    decider = decider(place["decider"]),
    subnet = subnet(place["subnet"]),
    position = place.optional("position")?.int() ?: 0,
)

private fun sends(place: JsonPlace): Sends =
    if (place.isText) {
        place.oneOf { word -> Sends.Input.takeIf { word == "input" } }
    } else {
        Sends.Activations(place.int(least = 1))
    }

private fun decider(place: JsonPlace): Decider = place["kind"].oneOf { kind ->
    when (kind) {
        "max_confidence" -> Decider.MaxConfidence(threshold(place))
        "entropy" -> Decider.Entropy(threshold(place))
        "margin" -> Decider.Margin(threshold(place))
        "logistic" -> logistic(
            place.only("kind", "threshold", "features", "weights", "bias", "by_answer", "by_runner_up"),
        )
        "router" -> router(place.only("kind", "threshold", "hidden", "weights"))
        else -> null
    }
}

private fun router(place: JsonPlace): Decider.Router {
    val hidden = place["hidden"].items().map { it.int() }
    if (hidden.size != 2) throw place["hidden"].wrong("an array of length 2")
    return Decider.Router(place["threshold"].number(), hidden[0] to hidden[1], floats(place["weights"]))
}

/** Little-endian floats in base64, as [place] has them. */
private fun floats(place: JsonPlace): List<Float> {
    val text = place.text()
    if (text.length % BASE64_GROUP != 0) throw place.wrong("base64")
    val bytes = try {
        Base64.getDecoder().decode(text)
    } catch (_: IllegalArgumentException) {
        throw place.wrong("base64")
    }
    if (bytes.size % Float.SIZE_BYTES != 0) throw place.wrong("floats of four bytes")
    val buffer = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer()
    return List(buffer.remaining()) { buffer.get(it) }
}

private fun encodedFloats(values: List<Float>): String {
    val buffer = ByteBuffer.allocate(values.size * Float.SIZE_BYTES).order(ByteOrder.LITTLE_ENDIAN)
    values.forEach(buffer::putFloat)
    return Base64.getEncoder().encodeToString(buffer.array())
}

private fun threshold(place: JsonPlace): Double = place.only("kind", "threshold")["threshold"].number()

private fun logistic(place: JsonPlace) = Decider.Logistic(
    threshold = place["threshold"].number(),
    features = place["features"].items().map { one -> one.oneOf { key -> LogitFeature.entries.find { it.key == key } } },
    weights = place["weights"].items().map { it.number() },
    bias = place["bias"].number(),
    byAnswer = place.optional("by_answer")?.items()?.map { it.number() }.orEmpty(),
    byRunnerUp = place.optional("by_runner_up")?.items()?.map { it.number() }.orEmpty(),
)

private fun JsonPlace.int(least: Int = Int.MIN_VALUE): Int =
    whole(least = least.toLong(), most = Int.MAX_VALUE.toLong()).toInt()

/** Extents of axes, each at least 1. */
internal fun JsonPlace.extents(): List<Int> =
    items().map { it.whole(least = 1, most = Int.MAX_VALUE.toLong()).toInt() }

/** Height and width, or one length, each at least 1. */
internal fun JsonPlace.sides(): SampleSize {
    val sides = extents()
    if (sides.size !in 1..2) throw wrong("a height and a width, or a length")
    return if (sides.size == 1) SampleSize(sides[0]) else SampleSize(sides[0], sides[1])
}
