/** Operators on short lists of numbers, as numpy computes them: what exporters compute shapes with (KnownValues.kt). */
package pathweave.sdk.bundles

import kotlin.math.abs
import kotlin.math.ceil
import kotlin.math.floor
import kotlin.math.truncate

private val FLOAT_TYPES = setOf(1L, 10L, 11L, 16L)

/** By operator. Throws a RuntimeException where operands or attributes are such that the operator cannot have. */
internal val ARITHMETIC: Map<String, (Attributes, List<Values>) -> Values> = mapOf(
    "Abs" to { _, all -> each(all.only(), { abs(it) }, { abs(it) }) },
    "Add" to { _, all -> both(all, { a, b -> a + b }, { a, b -> a + b }) },
    "Cast" to { given, all ->
        val value = all.only()
        if (given["to"] in FLOAT_TYPES) Values(value.shape, null, DoubleArray(value.size, value::double))
        else Values(value.shape, LongArray(value.size, value::long))
    },
    "Ceil" to { _, all -> each(all.only(), { it }, { ceil(it) }) },
    "Concat" to { given, all -> concatenated(all, given.integer("axis", 0)) },
    "ConstantOfShape" to { given, all -> filled(given, all.only()) },
    "Div" to { _, all ->
        if (all[0].isFloat) both(all, { _, _ -> undetermined() }, { a, b -> a / b })
        else toLongs(both(all.map(::toDoubles), { _, _ -> undetermined() }, ::truncatedQuotient))
    },
    "Equal" to { _, all ->
        toLongs(both(all, { a, b -> if (a == b) 1L else 0L }, { a, b -> if (a == b) 1.0 else 0.0 }))
    },
    "Floor" to { _, all -> each(all.only(), { it }, { floor(it) }) },
    "Gather" to { given, all -> taken(all[0], all[1].also { if (all.size > 2 || it.isFloat) undetermined() }, given) },
    "Identity" to { _, all -> all.only() },
    "Max" to { _, all -> all.reduce { one, other -> both(listOf(one, other), ::maxOf, ::maxOf) } },
    "Min" to { _, all -> all.reduce { one, other -> both(listOf(one, other), ::minOf, ::minOf) } },
    "Mod" to { _, all -> both(all, { a, b -> if (b == 0L) 0L else a % b }, { a, b -> a % b }) },
    "Mul" to { _, all -> both(all, { a, b -> a * b }, { a, b -> a * b }) },
    "Neg" to { _, all -> each(all.only(), { -it }, { -it }) },
    "ReduceProd" to { given, all -> multiplied(all[0], axesIn(given, all.drop(1)), given.flag("keepdims", true)) },
    "Reshape" to { _, all -> reshaped(all[0], all[1].also { if (all.size > 2 || it.isFloat) undetermined() }.all()) },
    "Slice" to { _, all -> sliced(all[0], all.drop(1)) },
    "Squeeze" to { given, all -> squeezed(all[0], axesIn(given, all.drop(1))) },
    "Sub" to { _, all -> both(all, { a, b -> a - b }, { a, b -> a - b }) },
    "Unsqueeze" to { given, all -> expanded(all[0], axesIn(given, all.drop(1))) },
    "Where" to { _, all ->
        if (all.size != 3) undetermined()
        val shape = broadcast(all.map { one -> one.shape.map(Int::toLong) })
        val (condition, a, b) = all.map { stretched(it, shape) }
        val (left, right) = toDoublesIfMixed(a, b)
        val chosen = IntArray(condition.size) { if (condition.double(it) != 0.0) it else condition.size + it }
        val joined = if (left.isFloat) Values(listOf(2 * left.size), null, left.doubles!! + right.doubles!!)
        else Values(listOf(2 * left.size), left.longs!! + right.longs!!)
        joined.pick(condition.shape, chosen)
    },
)

private fun truncatedQuotient(a: Double, b: Double): Double = if (b == 0.0) 0.0 else truncate(a / b)

private fun List<Values>.only(): Values = if (size == 1) this[0] else undetermined()

private fun toDoubles(value: Values) = Values(value.shape, null, DoubleArray(value.size, value::double))

private fun toDoublesIfMixed(a: Values, b: Values): Pair<Values, Values> =
    if (a.isFloat != b.isFloat) toDoubles(a) to toDoubles(b) else a to b

private fun toLongs(value: Values) = Values(value.shape, LongArray(value.size, value::long))

private fun each(value: Values, long: (Long) -> Long, double: (Double) -> Double): Values =
    if (value.isFloat) Values(value.shape, null, DoubleArray(value.size) { double(value.double(it)) })
    else Values(value.shape, LongArray(value.size) { long(value.long(it)) })

private fun both(all: List<Values>, long: (Long, Long) -> Long, double: (Double, Double) -> Double): Values {
    if (all.size != 2) undetermined()
    val shape = broadcast(all.map { one -> one.shape.map(Int::toLong) })
    val (a, b) = all.map { stretched(it, shape) }
    if (a.isFloat || b.isFloat) return Values(a.shape, null, DoubleArray(a.size) { double(a.double(it), b.double(it)) })
    return Values(a.shape, LongArray(a.size) { long(a.long(it), b.long(it)) })
}

/** [value] broadcast to [shape]. */
private fun stretched(value: Values, shape: List<Long>): Values {
    val target = shape.map { it.toInt() }
    val own = List(target.size - value.shape.size) { 1 } + value.shape
    for ((extent, to) in own.zip(target)) if (extent != to && extent != 1) undetermined()
    return value.pick(target, indices(target) { index ->
        own.indices.fold(0) { at, axis -> at * own[axis] + if (own[axis] == 1) 0 else index[axis] }
    })
}

/** For each index of [shape], in order, the place that [place] gives it. */
private fun indices(shape: List<Int>, place: (IntArray) -> Int): IntArray {
    if (shape.any { it < 0 } || product(shape.map(Int::toLong)) > MAX_PRODUCT) undetermined()
    val index = IntArray(shape.size)
    return IntArray(shape.fold(1) { all, extent -> all * extent }) { number ->
        var rest = number
        for (axis in shape.indices.reversed()) {
            index[axis] = rest % shape[axis]
            rest /= shape[axis]
        }
        place(index)
    }
}

private fun axis(told: Long, rank: Int): Int {
    if (told < -rank || told >= rank) undetermined()
    return (if (told < 0) told + rank else told).toInt()
}

private fun flat(shape: List<Int>, index: IntArray): Int =
    shape.indices.fold(0) { at, axis -> at * shape[axis] + index[axis] }

private fun without(shape: List<Int>, axis: Int): List<Int> = shape.filterIndexed { number, _ -> number != axis }

private fun concatenated(all: List<Values>, told: Long): Values {
    val rank = all[0].shape.size
    val axis = axis(told, rank)
    for (one in all) if (without(one.shape, axis) != without(all[0].shape, axis)) undetermined()
    val length = all.sumOf { it.shape[axis] }
    val shape = all[0].shape.mapIndexed { number, extent -> if (number == axis) length else extent }
    val float = all.any { it.isFloat }
    val starts = all.runningFold(0) { at, one -> at + one.shape[axis] }
    val doubles = DoubleArray(if (float) shape.fold(1, Int::times) else 0)
    val longs = LongArray(if (float) 0 else shape.fold(1, Int::times))
    var at = 0
    indices(shape) { index ->
        val number = starts.indexOfLast { it <= index[axis] && it < starts.last() }
            .let { last -> (last downTo 0).first { all[it].shape[axis] > 0 } }
        val own = index.copyOf().also { it[axis] -= starts[number] }
        val from = flat(all[number].shape, own)
        if (float) doubles[at] = all[number].double(from) else longs[at] = all[number].long(from)
        at++
    }
    return if (float) Values(shape, null, doubles) else Values(shape, longs)
}

private fun filled(attributes: Attributes, shape: Values): Values {
    val extents = if (shape.isFloat || shape.shape.size != 1) undetermined() else shape.all()
    if (extents.any { it < 0 || it > Int.MAX_VALUE } || product(extents) > MAX_VALUES) undetermined()
    val target = extents.map { it.toInt() }
    val one = (attributes["value"] as? Inferred)?.let { it.values ?: undetermined() } ?: Values.of(listOf(0L))
    if (one.shape.isEmpty() || one.size == 0) undetermined()
    return one.pick(target, indices(target) { 0 })
}

private fun taken(value: Values, places: Values, attributes: Attributes): Values {
    val axis = axis(attributes.integer("axis", 0), value.shape.size)
    val told = places.all().map { axis(it, value.shape[axis]) }
    val shape = value.shape.take(axis) + places.shape + value.shape.drop(axis + 1)
    return value.pick(shape, indices(shape) { index ->
        val inner = IntArray(places.shape.size) { index[axis + it] }
        val own = index.take(axis) + told[flat(places.shape, inner)] + index.drop(axis + places.shape.size)
        flat(value.shape, own.toIntArray())
    })
}

private fun axesIn(attributes: Attributes, more: List<Values>): List<Long> = when {
    more.isNotEmpty() -> more.only().all()
    else -> attributes.list("axes").orEmpty()
}

private fun multiplied(value: Values, told: List<Long>, keep: Boolean): Values {
    val rank = value.shape.size
    val axes = if (told.isEmpty()) value.shape.indices.toSet() else told.map { axis(it, rank) }.toSet()
    if (told.isNotEmpty() && axes.size != told.size) undetermined()
    val shape = value.shape.mapIndexed { number, extent -> if (number in axes) 1 else extent }
    val size = shape.fold(1, Int::times)
    val longs = LongArray(if (value.isFloat) 0 else size) { 1 }
    val doubles = DoubleArray(if (value.isFloat) size else 0) { 1.0 }
    indices(value.shape) { index ->
        val from = flat(value.shape, index)
        val to = flat(shape, IntArray(rank) { if (it in axes) 0 else index[it] })
        if (value.isFloat) doubles[to] *= value.double(from) else longs[to] *= value.long(from)
        0
    }
    val left = if (keep) shape else shape.filterIndexed { number, _ -> number !in axes }
    return if (value.isFloat) Values(left, null, doubles) else Values(left, longs)
}

private fun reshaped(value: Values, told: List<Long>): Values {
    val known = product(told.filter { it >= 0 })
    if (told.any { it < -1 } || told.count { it < 0 } > 1) undetermined()
    val shape = told.map { if (it < 0) value.size / maxOf(known, 1) else it }
    if (product(shape) != value.size.toLong() || (told.any { it < 0 } && known == 0L)) undetermined()
    return Values(shape.map { it.toInt() }, value.longs, value.doubles)
}

/** The places that Python's `slice(start, end, step)` takes of [extent]. */
internal fun slicePlaces(start: Long, end: Long, step: Long, extent: Long): LongProgression {
    if (step == 0L) undetermined()
    val (low, high) = if (step > 0) 0L to extent else -1L to extent - 1
    fun bounded(index: Long) = (if (index < 0) index + extent else index).coerceIn(low, high)
    val (from, to) = bounded(start) to bounded(end)
    return LongProgression.fromClosedRange(from, if (step > 0) to - 1 else to + 1, step)
}

private fun sliced(value: Values, bounds: List<Values>): Values {
    if (bounds.size !in 2..4 || bounds.any { it.shape.isEmpty() || it.isFloat }) undetermined()
    val (starts, ends) = bounds[0].all() to bounds[1].all()
    val axes = bounds.getOrNull(2)?.all() ?: starts.indices.map(Int::toLong)
    val steps = bounds.getOrNull(3)?.all() ?: starts.map { 1L }
    if (setOf(starts.size, ends.size, axes.size, steps.size).size > 1) undetermined()
    val places = value.shape.map { (0 until it).toList() }.toMutableList()
    for ((number, told) in axes.withIndex()) {
        val axis = axis(told, value.shape.size)
        val taken = slicePlaces(starts[number], ends[number], steps[number], value.shape[axis].toLong())
        places[axis] = taken.map { it.toInt() }
    }
    val shape = places.map { it.size }
    val own = indices(shape) { index -> flat(value.shape, IntArray(shape.size) { places[it][index[it]] }) }
    return value.pick(shape, own)
}

private fun squeezed(value: Values, told: List<Long>): Values {
    val rank = value.shape.size
    val axes = if (told.isEmpty()) (0 until rank).filter { value.shape[it] == 1 } else told.map { axis(it, rank) }
    if (axes.any { value.shape[it] != 1 } || axes.toSet().size != axes.size) undetermined()
    return Values(value.shape.filterIndexed { number, _ -> number !in axes }, value.longs, value.doubles)
}

private fun expanded(value: Values, told: List<Long>): Values =
    Values(withAxes(value.shape.map(Int::toLong), told).map { it.toInt() }, value.longs, value.doubles)

/** [shape] with axes of extent 1 at the places [told]. */
internal fun withAxes(shape: List<Long>, told: List<Long>): List<Long> {
    val rank = shape.size + told.size
    val axes = told.map { axis(it, rank) }.toSet()
    if (axes.size != told.size) undetermined()
    val rest = shape.iterator()
    return List(rank) { if (it in axes) 1L else rest.next() }
}

internal const val MAX_VALUES = 1024 // a shape or a list of axes is short
internal const val MAX_PRODUCT = 1L shl 20 // of the lengths of the operands: none of the results can be longer
internal const val MAX_EXTENT = 1L shl 48
internal const val MOST = 1L shl 62 // products stop here, above every limit

/** A rule does not apply: a shape or a value that it needs is unknown, or cannot be. */
internal class UndeterminedError(message: String = "unknown") : RuntimeException(message)

internal fun undetermined(message: String = "unknown"): Nothing = throw UndeterminedError(message)

/** A tensor's [shape] (null: unknown) and, if it is a short one that is known, its [values]. */
internal class Inferred(val shape: List<Long>?, val values: Values? = null)

/** Known elements of a tensor of [shape]: [longs], or [doubles] where it is one of floats. */
internal class Values(val shape: List<Int>, val longs: LongArray?, val doubles: DoubleArray? = null) {
    val size: Int get() = longs?.size ?: doubles!!.size
    val isFloat: Boolean get() = doubles != null

    fun double(index: Int): Double = doubles?.get(index) ?: longs!![index].toDouble()

    fun long(index: Int): Long =
        longs?.get(index) ?: doubles!![index].let { if (it.isFinite()) it.toLong() else undetermined() }

    /** The elements at [indices], as a tensor of [shape]. */
    fun pick(shape: List<Int>, indices: IntArray): Values =
        if (isFloat) Values(shape, null, DoubleArray(indices.size) { doubles!![indices[it]] })
        else Values(shape, LongArray(indices.size) { longs!![indices[it]] })

    fun all(): List<Long> = List(size) { long(it) }

    companion object {
        fun of(values: List<Long>) = Values(listOf(values.size), values.toLongArray())

        fun scalar(value: Long) = Values(emptyList(), longArrayOf(value))
    }
}

internal typealias Given = List<Inferred?>

/** The attributes of a node; what is of another kind than a rule expects makes the rule inapplicable. */
internal class Attributes(private val values: Map<String, Any?>) {
    operator fun get(name: String): Any? = values[name]

    /** An integer, or [default] where there is none. */
    fun integer(name: String, default: Long): Long = when (val found = values[name]) {
        null -> if (name in values) undetermined() else default
        is Long -> found
        else -> undetermined()
    }

    /** Whether an integer is set and not 0. */
    fun flag(name: String, default: Boolean = false): Boolean =
        if (name !in values) default else (values[name] as? Long ?: 0L) != 0L

    /** A list that is not empty; null where there is none. */
    fun list(name: String): List<Long>? = when (val found = values[name]) {
        null, 0L, "" -> null
        is List<*> -> found.map { it as Long }.takeIf { it.isNotEmpty() }
        else -> undetermined()
    }
}

/** The product, at most 2⁶² and at least −2⁶². */
internal fun product(factors: Iterable<Long>): Long {
    var found = 1L
    for (factor in factors) {
        found = when {
            factor == 0L -> return 0L
            abs(found) > MOST / abs(factor) -> if ((found < 0) == (factor < 0)) MOST else -MOST
            else -> found * factor
        }
    }
    return found
}

/** The shape of an input; undetermined if it is unknown or absent. */
internal fun shapeOf(given: Given, index: Int): List<Long> = given.getOrNull(index)?.shape ?: undetermined()

/** The values of an input as integers between −2⁴⁸ and 2⁴⁸. */
internal fun integersOf(given: Given, index: Int): List<Long> {
    val values = given.getOrNull(index)?.values ?: undetermined()
    return values.all().map { it.coerceIn(-MAX_EXTENT, MAX_EXTENT) }
}

/** An input that may be left out. */
internal fun givenAt(given: Given, index: Int): Inferred? = given.getOrNull(index)

/** The shape that operands of these shapes are broadcast to; 0 only meets 0 and 1. */
internal fun broadcast(shapes: List<List<Long>>): List<Long> {
    val rank = shapes.maxOf { it.size }
    return List(rank) { axis ->
        val extents = shapes.map { shape -> shape.getOrElse(axis - rank + shape.size) { 1L } }
        if (0L in extents) 0L else extents.max()
    }
}

/** The values of an output that is computed from shapes and short constants; else null. */
internal fun knownValues(operator: String, given: Given, attributes: Attributes): Values? {
    val shape = given.firstOrNull()?.shape
    when (operator) {
        "Shape" -> if (shape != null) return sliceOf(shape, attributes)
        "Size" -> if (shape != null) return Values.scalar(minOf(product(shape), MAX_EXTENT))
        "Constant" -> return constantOf(attributes)
    }
    val rule = ARITHMETIC[operator] ?: return null
    val operands = given.map { it?.values ?: return null }
    if (operands.isEmpty()) return null
    if (operator != "Concat" && product(operands.map { maxOf(it.size, 1).toLong() }) > MAX_PRODUCT) return null
    return try {
        rule(attributes, operands).takeIf { it.size <= MAX_VALUES }
    } catch (_: RuntimeException) {
        null // operands and attributes that the operator cannot have
    }
}

private fun sliceOf(shape: List<Long>, attributes: Attributes): Values {
    val (start, end) = attributes.integer("start", 0) to attributes.integer("end", shape.size.toLong())
    fun bounded(index: Long) = (if (index < 0) index + shape.size else index).coerceIn(0, shape.size.toLong()).toInt()
    return Values.of(if (bounded(start) < bounded(end)) shape.subList(bounded(start), bounded(end)) else emptyList())
}

private fun constantOf(attributes: Attributes): Values? {
    (attributes["value"] as? Inferred)?.let { return it.values }
    (attributes["value_int"] as? Long)?.let { return Values.scalar(it) }
    return (attributes["value_ints"] as? List<*>)?.let { list -> Values.of(list.map { it as Long }) }
}
