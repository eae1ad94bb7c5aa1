package pathweave.sdk.session

import java.io.File
import java.nio.file.Path
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.buildJsonObject
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.io.TempDir
import org.junit.jupiter.params.ParameterizedTest
import org.junit.jupiter.params.provider.ValueSource
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.Contract
import pathweave.sdk.InputError
import pathweave.sdk.Published
import pathweave.sdk.UsageError
import pathweave.sdk.assertRefused
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.policies.AdaptationSettings
import pathweave.sdk.policies.Adaptations
import pathweave.sdk.supernet.Goal
import pathweave.sdk.supernet.Kind
import pathweave.sdk.tasks.BoxTargets
import pathweave.sdk.tasks.answerTask

private const val COUNT = 60
private val WIDE = Goal(latencyMs = 1000.0)

/** Models of maps, several labels, numbers and vectors adapt, run what they found and follow the device's speed. */
class AdaptingTasksTest {
    @TempDir
    lateinit var folder: Path

    private fun open(kind: String): AdaptiveModel {
        val bundle = if (kind == "segmentation") File(Contract.repository, "tests/contract/maps") else retasked(kind)
        return AdaptiveModel.open(bundle, Contract.key, stateFolder = File(folder.toFile(), "state"))
    }

    /** The reference bundle, whose three values mean something else. */
    private fun retasked(kind: String): File {
        val names = if (kind == "embedding") emptyList() else listOf("blue", "green", "red")
        val outputs = mapOf("multilabel" to "logits", "regression" to "values", "embedding" to "vector")
        val task = buildJsonObject {
            put("kind", JsonPrimitive(kind))
            put("class_names", JsonArray(names.map(::JsonPrimitive)))
            put("output", JsonPrimitive(outputs.getValue(kind)))
            put("class_ids", JsonArray(emptyList()))
        }
        return Published.writeChanged(File(folder.toFile(), kind), mapOf("task" to task, "exits" to JsonArray(emptyList())))
    }

    private fun inputs(): Tensor = Adaptations.inputs().take((0 until COUNT).toList(), null)

    @ParameterizedTest
    @ValueSource(strings = ["segmentation", "multilabel", "regression", "embedding"])
    fun `with targets and without, what a model finds is judged by its own score, run and watched`(kind: String) {
        open(kind).use { model ->
            val (task, inputs) = answerTask(model.bundle.manifest.task) to inputs()
            val own = task.standIn(model.infer(inputs).output)
            val settings = AdaptationSettings(fillPool = true, keepSamples = true)
            for (targets in listOf(own, null)) {
                val found = model.adaptBlocking(model.inputs(inputs), WIDE, targets = targets, settings = settings)
                assertEquals(1.0, found.fullAccuracy!!, 1e-6)
                assertTrue(found.expected.accuracy!! > 0.95, "${found.expected}")
                assertTrue(found.pool.minOf { it.accuracy } < 0.99, "added blocks lose") // so that accuracies mean something
                assertNull(found.plan.prior)
                assertEquals(found.plan, model.plan)
            }
            model.live.start(Signal.LATENCY)
            assertEquals(setOf(Signal.LATENCY), model.live.running)
            val some = model.inputs(inputs).take(listOf(0, 1, 2), model.plan.inputSize)
            val scores = List(30) { task.scores(model.infer(some).output, own.at(listOf(0, 1, 2))).average() }
            assertTrue(scores.min() > 0.7, "$scores")
            assertRefused<UsageError> { model.adaptBlocking(model.inputs(inputs), WIDE, setOf(Kind.SUBNETS, Kind.CASCADE)) }
            assertRefused<UsageError> { model.adaptBlocking(model.inputs(inputs), Goal(maxDrop = 0.1)) }
            val boxes = BoxTargets(List(COUNT) { emptyList() })
            assertRefused<InputError> { model.adaptBlocking(model.inputs(inputs), WIDE, targets = boxes) }
        }
    }
}
