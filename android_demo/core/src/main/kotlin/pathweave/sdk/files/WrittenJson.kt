/** JSON as plans, profiles, logs and requests are written: fields in order, numbers as Python writes them. */
package pathweave.sdk.files

import java.math.BigDecimal
import java.math.MathContext
import java.math.RoundingMode
import kotlin.math.withSign
import kotlinx.serialization.ExperimentalSerializationApi
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonUnquotedLiteral
import pathweave.sdk.UsageError

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
