package pathweave.sdk.tasks

import java.io.File
import kotlin.math.abs
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.DynamicTest.dynamicTest
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.TestFactory
import pathweave.sdk.Contract
import pathweave.sdk.InputError
import pathweave.sdk.assertRefused
import pathweave.sdk.bundles.Task
import pathweave.sdk.double
import pathweave.sdk.get
import pathweave.sdk.int
import pathweave.sdk.items
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.text
import pathweave.sdk.texts

private const val TOLERANCE = 1e-5

/** Scores, margins, stand-ins and what is compared, by task: tests/contract/tasks.json. */
class TaskContractTest {
    private val cases = Json.parseToJsonElement(File(Contract.repository, "tests/contract/tasks.json").readText())["cases"].items

    private fun task(case: JsonElement) = answerTask(Task(case["kind"].text, case["classes"].items.map { it.text }))

    private fun floats(value: JsonElement) = FloatArray(value.items.size) { value.items[it].double.toFloat() }

    private fun answers(case: JsonElement) = Tensor.of(floats(case["answers"]), case["shape"].items.map { it.int })

    private fun targets(case: JsonElement, value: JsonElement): Targets = when (case["kind"].text) {
        "classification" -> ClassTargets(value.items.map { it.int }.toIntArray())
        "segmentation" -> {
            val maps = value["maps"].items.map { map -> map.items.map { it.int }.toIntArray() }
            MapTargets(maps, value["height"].int, value["width"].int)
        }
        "token_classification" -> TokenTargets(value.items.map { text -> text.items.map { it.int }.toIntArray() })
        "detection" -> BoxTargets(value.items.map { boxes -> boxes.items.map { box(floats(it)) } })
        else -> ValueTargets(value.items.map(::floats))
    }

    private fun box(row: FloatArray) = ObjectBox(row[0].toInt(), row[1], row[2], row[3], row[4])

    private fun close(expected: FloatArray, found: FloatArray, what: String) {
        assertEquals(expected.size, found.size, what)
        for (at in expected.indices) {
            val apart = abs(expected[at] - found[at])
            assertTrue(apart <= TOLERANCE * maxOf(1f, abs(expected[at])), "$what: ${expected[at]} is wanted, ${found[at]} found")
        }
    }

    @TestFactory
    fun `answers count as in Python`(): List<DynamicTest> = cases.mapIndexed { number, case ->
        dynamicTest("$number ${case["kind"].text}") {
            val (task, answers, targets) = Triple(task(case), answers(case), targets(case, case["targets"]))
            task.check(targets, answers.batch)
            assertEquals(case["kind"].text == "classification", task.classifies)
            close(floats(case["scores"]), task.scores(answers, targets), "scores")
            close(floats(case["margins"]), task.margins(answers, targets), "margins")
            val margins = DoubleArray(answers.batch) { case["margins"].items[it].double }
            assertEquals(case["scale"].double, task.marginScale(margins, answers.batch), 1e-6)
            task.compared(answers).zip(case["compared"].items) { own, wanted -> close(floats(wanted), own, "compared") }
            same(targets(case, case["stand_in"]), task.standIn(answers))
            val found = task.predictions(answers, case["classes"].texts)
            for ((own, wanted) in found.zip(case["predictions"].items)) same(wanted.items, own)
            close(FloatArray(answers.batch) { 1f }, task.scores(answers, task.standIn(answers)), "agreement with itself")
        }
    }

    private fun same(wanted: List<JsonElement>, found: List<Prediction>) {
        assertEquals(wanted.map { it["label"].text }, found.map { it.label })
        for ((one, own) in wanted.zip(found)) {
            for ((name, value) in listOf("confidence" to own.confidence, "share" to own.share, "value" to own.value)) {
                assertEquals(one[name].takeIf { it !is JsonNull }?.double ?: Double.NaN, value ?: Double.NaN, 1e-6, name)
            }
            val tokens = one["tokens"].takeIf { it !is JsonNull }?.items
            assertEquals(tokens?.let { (first, end) -> first.int until end.int }, own.tokens)
            one["box"].takeIf { it !is JsonNull }?.let { close(floats(it), sides(checkNotNull(own.box)), "box") }
        }
    }

    private fun same(wanted: Targets, found: Targets) {
        when (wanted) {
            is ClassTargets -> assertEquals(wanted.classes.toList(), (found as ClassTargets).classes.toList())
            is MapTargets -> assertEquals(wanted.maps.map { it.toList() }, (found as MapTargets).maps.map { it.toList() })
            is TokenTargets ->
                assertEquals(wanted.classes.map { it.toList() }, (found as TokenTargets).classes.map { it.toList() })
            is ValueTargets -> wanted.values.zip((found as ValueTargets).values) { one, other -> close(one, other, "stand-in") }
            is BoxTargets -> wanted.boxes.zip((found as BoxTargets).boxes) { one, other ->
                assertEquals(one.map { it.classIndex }, other.map { it.classIndex })
                one.zip(other) { a, b -> close(sides(a), sides(b), "stand-in") }
            }
        }
    }

    private fun sides(box: ObjectBox) = floatArrayOf(box.left, box.top, box.right, box.bottom)

    @Test
    fun `targets of another task or of other samples are refused`() {
        val maps = MapTargets(List(2) { IntArray(6) }, 2, 3)
        val refused = listOf(
            "there are 3 samples" to { MeanIoU(2).check(maps, 3) },
            "targets must be class indices" to { Accuracy(2).check(maps, 2) },
            "0 and 1, got 0 to 2" to { Accuracy(2).check(ClassTargets(intArrayOf(0, 2)), 2) },
            "2 × 2 pixels" to { MeanIoU(2).check(MapTargets(List(2) { IntArray(6) }, 2, 2), 2) },
            "or be 255" to { MeanIoU(2).check(MapTargets(List(2) { IntArray(6) { 2 } }, 2, 3), 2) },
            "between 0 and 1" to { BoxesFound(2).check(BoxTargets(listOf(listOf(ObjectBox(2, 0f, 0f, 1f, 1f)))), 1) },
            "must be finite" to { BoxesFound(2).check(BoxTargets(listOf(listOf(ObjectBox(1, Float.NaN, 0f, 1f, 1f)))), 1) },
            "1 where a label is there" to { LabelsFound(2).check(ValueTargets(listOf(floatArrayOf(0f, 2f))), 1) },
            "2 numbers each; one sample has 1" to { RelativeAgreement(2).check(ValueTargets(listOf(floatArrayOf(0f))), 1) },
            "below 0 for none" to { TokensRight(2).check(TokenTargets(listOf(intArrayOf(-1, 2))), 1) },
            "must be finite" to { Similarity.check(ValueTargets(listOf(floatArrayOf(Float.NaN))), 1) },
        )
        for ((says, check) in refused) {
            val error = assertRefused<InputError> { check() }
            assertTrue(says in error.message!!, "$says: ${error.message}")
        }
        MeanIoU(2).check(MapTargets(List(2) { IntArray(6) { UNLABELLED } }, 2, 3), 2)
    }
}
