/** JSON from untrusted bytes: a bundle's manifest before its signature is checked, a stored plan. */
package pathweave.sdk.files

import java.math.BigDecimal
import java.math.BigInteger
import java.math.MathContext
import java.math.RoundingMode
import java.nio.ByteBuffer
import java.nio.charset.CharacterCodingException
import kotlin.math.withSign
import kotlinx.serialization.ExperimentalSerializationApi
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.JsonUnquotedLiteral
import pathweave.sdk.UsageError

private const val MAX_DEPTH = 256
private const val LONGEST_INTEGER = 40 // digits; more than any field of ours can hold
private const val FIRST_PRINTABLE = 0x20.toByte()
private val INTEGER = Regex("-?(0|[1-9][0-9]*)")
private val NUMBER = Regex("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?")

/** The bytes are not JSON, or not what was expected; the message says what and where. */
internal class JsonError(message: String, cause: Throwable? = null) : Exception(message, cause)

/**
 * The root of the JSON in [data].
 *
 * @throws JsonError not JSON, not UTF-8, or nested too deeply.
 */
internal fun decodeJson(data: ByteArray): JsonPlace {
    refuseDepth(data) // before the parser, which is recursive
    try {
        val text = Charsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(data)).toString()
        return JsonPlace(Json.parseToJsonElement(text).also(::refuseLooseLiterals))
    } catch (error: CharacterCodingException) {
        throw JsonError("it is not UTF-8", error)
    } catch (error: IllegalArgumentException) {
        throw JsonError("JSON is malformed: ${error.message?.lineSequence()?.first()}", error)
    }
}

private fun refuseDepth(data: ByteArray) {
    var depth = 0
    var inText = false
    var at = 0
    while (at < data.size) {
        val byte = data[at]
        if (inText) {
            when {
                byte == '\\'.code.toByte() -> at++
                byte == '"'.code.toByte() -> inText = false
                byte in 0 until FIRST_PRINTABLE -> throw JsonError("JSON is malformed: a control character in a string")
            }
        } else {
            when (byte.toInt().toChar()) {
                '"' -> inText = true
                '[', '{' -> if (++depth > MAX_DEPTH) throw JsonError("it is nested too deeply")
                ']', '}' -> depth--
            }
        }
        at++
    }
}

/** The parser takes any word for a literal; JSON has three of them, and numbers. */
private fun refuseLooseLiterals(element: JsonElement) {
    when (element) {
        is JsonObject -> element.values.forEach(::refuseLooseLiterals)
        is JsonArray -> element.forEach(::refuseLooseLiterals)
        is JsonPrimitive -> {
            val literal = element.content
            if (!element.isString && literal !in listOf("null", "true", "false") && !NUMBER.matches(literal)) {
                throw JsonError("JSON is malformed: '${literal.take(40)}' is not a value")
            }
        }
    }
}

/**
 * A JSON value and where it stands. Every reader throws [JsonError] when the value is of another kind.
 *
 * [step]: the name or the index that leads here from [above].
 */
internal class JsonPlace(
    private val element: JsonElement,
    private val above: JsonPlace? = null,
    private val step: Any = "",
) {
    /** Put together only for errors: a manifest may have millions of values. */
    private val path: String
        get() = generateSequence(this) { it.above }.toList().reversed().joinToString("") { place ->
            when {
                place.above == null -> "$"
                place.step is Int -> "[${place.step}]"
                else -> ".${place.step}"
            }
        }

    /** The field [name], which has to be there. */
    operator fun get(name: String): JsonPlace =
        optional(name) ?: throw JsonError("Object missing required field `$name` - at `$path`")

    /** The field [name] if it is there. */
    fun optional(name: String): JsonPlace? {
        val fields = element as? JsonObject ?: throw wrong("an object")
        return fields[name]?.let { JsonPlace(it, this, name) }
    }

    /** The field [name] if it is there and not null. */
    fun nullable(name: String): JsonPlace? = optional(name)?.takeIf { it.element !is JsonNull }

    /** This object, all of whose fields have to be among [names]. */
    fun only(vararg names: String): JsonPlace {
        val fields = element as? JsonObject ?: throw wrong("an object")
        val unknown = fields.keys.find { it !in names } ?: return this
        throw JsonError("Object contains unknown field `${unknown.take(40)}` - at `$path`")
    }

    /** The elements of an array. */
    fun items(): List<JsonPlace> {
        val items = element as? JsonArray ?: throw wrong("an array")
        return items.mapIndexed { index, item -> JsonPlace(item, this, index) }
    }

    /** The values of an object, whatever their names. */
    fun members(): List<JsonPlace> = entries().values.toList()

    /** The values of an object by their names. */
    fun entries(): Map<String, JsonPlace> {
        val fields = element as? JsonObject ?: throw wrong("an object")
        return fields.mapValues { (name, value) -> JsonPlace(value, this, name) }
    }

    /** The value as JSON. */
    override fun toString(): String = element.toString()

    val isNull: Boolean get() = element is JsonNull

    val isArray: Boolean get() = element is JsonArray

    val isText: Boolean get() = (element as? JsonPrimitive)?.isString == true

    /** Anything but an object or an array. */
    fun scalar() {
        if (element !is JsonPrimitive) throw wrong("a string, a number, true, false or null")
    }

    fun text(): String = (element as? JsonPrimitive)?.takeIf { it.isString }?.content ?: throw wrong("a string")

    fun flag(): Boolean = when (literal("true or false")) {
        "true" -> true
        "false" -> false
        else -> throw wrong("true or false")
    }

    /** An integer of any size. */
    fun integer(): BigInteger {
        val literal = literal("an integer")
        if (!INTEGER.matches(literal)) throw wrong("an integer")
        if (literal.length > LONGEST_INTEGER) throw JsonError("Number out of range - at `$path`")
        return BigInteger(literal)
    }

    /** An integer from [least] to [most]. */
    fun whole(least: Long = Long.MIN_VALUE, most: Long = Long.MAX_VALUE): Long {
        val value = integer()
        if (value < BigInteger.valueOf(least) || value > BigInteger.valueOf(most)) {
            throw JsonError("Expected an integer from $least to $most - at `$path`")
        }
        return value.toLong()
    }

    fun number(): Double {
        val literal = literal("a number")
        if (!NUMBER.matches(literal)) throw wrong("a number")
        val value = literal.toDouble()
        if (value.isInfinite()) throw JsonError("Number out of range - at `$path`")
        return value
    }

    /** The value that [known] finds for a string. */
    fun <T> oneOf(known: (String) -> T?): T {
        val text = text()
        return known(text) ?: throw JsonError("Invalid value '${text.take(40)}' - at `$path`")
    }

    private fun literal(expected: String): String =
        (element as? JsonPrimitive)?.takeIf { !it.isString && it !is JsonNull }?.content ?: throw wrong(expected)

    fun wrong(expected: String): JsonError = JsonError("Expected $expected - at `$path`")
}

private const val SHORTEST_PLAIN = -5 // decimal exponent of the first digit; numbers below it have an exponent
private const val LONGEST_PLAIN = 15
private const val MOST_DIGITS = 17 // always enough to tell one double from the next

/** An object that is written in the order of [fields]. */
internal fun jsonOf(vararg fields: Pair<String, JsonElement>): JsonObject = JsonObject(linkedMapOf(*fields))

@OptIn(ExperimentalSerializationApi::class) // the only way to write a number in a form of one's own
internal fun json(number: Double?): JsonElement =
    if (number == null) JsonNull else JsonUnquotedLiteral(shortestDecimal(number))

/** JSON of our own, to be a part of other JSON. */
internal fun parsed(data: ByteArray): JsonElement = Json.parseToJsonElement(String(data))

/**
 * The shortest decimal that reads as [value], written as Python does: `0.5`, `1.0000000000000002`, `1e-6`, `1.5e16`.
 *
 * `Double.toString` is not the shortest before JDK 19, nor on Android.
 *
 * @throws UsageError it is infinite or not a number.
 */
internal fun shortestDecimal(value: Double): String {
    if (!value.isFinite()) throw UsageError("a plan cannot store the number $value")
    val sign = if (1.0.withSign(value) < 0.0) "-" else ""
    if (value == 0.0) return "${sign}0.0"
    val decimal = shortest(BigDecimal(value).abs()).stripTrailingZeros()
    val digits = decimal.unscaledValue().toString()
    val exponent = decimal.precision() - decimal.scale() - 1 // of the first digit
    if (exponent !in SHORTEST_PLAIN..LONGEST_PLAIN) {
        val fraction = digits.drop(1)
        return sign + digits.first() + (if (fraction.isEmpty()) "" else ".$fraction") + "e$exponent"
    }
    val plain = decimal.toPlainString()
    return sign + if ('.' in plain) plain else "$plain.0"
}

/**
 * The decimal with the fewest digits that reads as the same double as [exact]; of several the nearest to it, of two
 * equally near ones the one with the even last digit.
 */
private fun shortest(exact: BigDecimal): BigDecimal {
    val double = exact.toDouble()
    for (digits in 1..MOST_DIGITS) {
        listOf(RoundingMode.HALF_EVEN, RoundingMode.DOWN, RoundingMode.UP) // the nearest may read as a neighbour
            .map { exact.round(MathContext(digits, it)) }
            .filter { it.toDouble() == double }
            .minByOrNull { (it - exact).abs() }
            ?.let { return it }
    }
    return exact
}
