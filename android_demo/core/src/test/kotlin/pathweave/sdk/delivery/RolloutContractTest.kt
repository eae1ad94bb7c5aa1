package pathweave.sdk.delivery

import java.io.File
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.boolean
import kotlinx.serialization.json.jsonArray
import kotlinx.serialization.json.jsonObject
import kotlinx.serialization.json.jsonPrimitive
import kotlinx.serialization.json.long
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import pathweave.sdk.BlobError
import pathweave.sdk.BudgetError
import pathweave.sdk.BundleError
import pathweave.sdk.ClockError
import pathweave.sdk.CompositionError
import pathweave.sdk.Contract
import pathweave.sdk.DeadlineError
import pathweave.sdk.ExpiredError
import pathweave.sdk.ManifestError
import pathweave.sdk.PathweaveError
import pathweave.sdk.ProtocolError
import pathweave.sdk.RefusedError
import pathweave.sdk.RollbackError
import pathweave.sdk.RuntimeFailedError
import pathweave.sdk.SelfTestError
import pathweave.sdk.SignatureError
import pathweave.sdk.StorageError
import pathweave.sdk.TransferError
import pathweave.sdk.UnsupportedFormatError
import pathweave.sdk.bundles.verifyRollback
import pathweave.sdk.bytes
import pathweave.sdk.files.hex
import pathweave.sdk.get
import pathweave.sdk.items
import pathweave.sdk.logs.delivered
import pathweave.sdk.logs.refused
import pathweave.sdk.text
import pathweave.sdk.texts

/** tests/contract/rollouts.json: what servers assign, signed rollbacks to it, and what is reported of refusals. */
class RolloutContractTest {
    private val vectors = Json.parseToJsonElement(File(Contract.repository, "tests/contract/rollouts.json").readText())

    private fun cases(name: String, least: Int) = vectors[name].items.also { assertTrue(it.size >= least, name) }

    private val JsonElement.orNull: JsonElement? get() = takeIf { it !is JsonNull }
    private val JsonElement.whole: Long get() = jsonPrimitive.long

    /** [work] throws the error of the [case], or none. */
    private fun check(case: JsonElement, what: String, work: () -> Unit) {
        val error = try {
            work()
            null
        } catch (error: PathweaveError) {
            error::class.simpleName
        }
        assertEquals(case.jsonObject["error"]?.orNull?.text, error, what)
    }

    @Test
    fun `a device asks with its name and plain tags`() {
        for (case in cases("questions", least = 15)) {
            val tags = case["tags"].orNull?.jsonObject?.mapValues { it.value.text }
            check(case, "$tags") {
                val sent = askingHeaders(case["device"].text, tags)
                assertEquals(case["headers"].jsonObject.mapValues { it.value.text }, sent)
            }
        }
    }

    @Test
    fun `answers are read alike and what is none is refused`() {
        for (case in cases("assignments", least = 20)) {
            check(case, case["case"].text) {
                val found = decodeAssignment(case["answer"].text.toByteArray())
                val (rollout, stage) = listOf("rollout", "stage").map { case[it].orNull?.whole }
                assertEquals(Assignment(case["version"].whole, rollout, stage, case["rollback"].jsonPrimitive.boolean), found)
            }
        }
    }

    @Test
    fun `the same rollbacks are taken`() {
        for (case in cases("rollbacks", least = 40)) {
            check(case, case["case"].text) {
                val rollback = verifyRollback(case["rollback"].text.toByteArray(), case["signers"].orNull?.texts)
                val (name, version) = case["name"].text to case["version"].whole
                rollback.requirePermitted(name, version, case["manifest_sha256"].text, case["had"].whole)
                rollback.requireValid(case["clock_s"].whole, case["proven_s"].whole)
            }
        }
    }

    @Test
    fun `the mark of a device that was rolled back is written the same everywhere`() {
        for (case in cases("marks", least = 4)) {
            val mark = decodeMark(case["record"].bytes)
            val told = case.jsonObject["mark"]
            if (told == null) {
                assertNull(mark, case["case"].text)
                continue
            }
            val expected = Mark(
                told["name"].text,
                told["version"].text.toLong(),
                told["digest"].text,
                told["addresses"].texts,
                told["rolled_back_to"].text,
            )
            assertEquals(expected, mark)
            assertEquals(case["record"].text, hex(encodeMark(expected)))
            fun permitted(name: String) = case[name].items.map { expected.permits(it.jsonArray[0].whole, it.jsonArray[1].text) }
            assertTrue(permitted("permits").let { it.isNotEmpty() && it.all { one -> one } })
            assertFalse(permitted("refuses").any { it })
        }
    }

    @Test
    fun `reasons of refusals have the same names`() {
        val errors: List<PathweaveError> = listOf(
            SelfTestError("x"), CompositionError("x"), RuntimeFailedError("x"), BudgetError("x"), ExpiredError("x"),
            ClockError("x"), SignatureError("x"), RollbackError("x"), TransferError("x"), DeadlineError("x"),
            RefusedError("x", 403), ProtocolError("x"), StorageError("x"), BundleError("x"), ManifestError("x"),
            UnsupportedFormatError("x"), BlobError("x"),
        )
        val found = errors.associate { it::class.simpleName to reasonOf(it).text }
        assertEquals(vectors["reasons"].jsonObject.mapValues { it.value.text }, found)
    }

    @Test
    fun `deliveries and refusals are the same lines of the log`() {
        val reasons = RefusalReason.entries.associateBy { it.text }
        for (case in cases("events", least = 3)) {
            val refusal = case["refused"].orNull?.let {
                Refusal(it["version"].whole, it["digest"].orNull?.text, reasons.getValue(it["reason"].text))
            }
            val delivery = Delivered(
                File("f"), File("b"), "tiny", "9".repeat(64), 2, DeliverySource.valueOf(case["how"].text.uppercase()),
                blobsFetched = 4, bytesFetched = 5_000_000_000, resumed = 1, failure = case["failure"].orNull?.text,
                refused = refusal,
            )
            val events = listOfNotNull(delivered(delivery), refusal?.let { refused(it, delivery.failure) })
            assertEquals(case["events"].texts, events.map { it.toString() })
        }
    }
}
