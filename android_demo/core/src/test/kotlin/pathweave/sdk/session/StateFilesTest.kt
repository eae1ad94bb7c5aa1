package pathweave.sdk.session

import java.io.File
import java.nio.file.Path
import kotlinx.coroutines.runBlocking
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.jsonObject
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.Contract
import pathweave.sdk.InfeasibleBudgetError
import pathweave.sdk.UsageError
import pathweave.sdk.assertRefused
import pathweave.sdk.double
import pathweave.sdk.get
import pathweave.sdk.int
import pathweave.sdk.items
import pathweave.sdk.live.poolOf
import pathweave.sdk.logs.AdaptationLog
import pathweave.sdk.policies.Adaptations
import pathweave.sdk.policies.Found
import pathweave.sdk.policies.Measured
import pathweave.sdk.profiling.Conditions
import pathweave.sdk.profiling.currentConditions
import pathweave.sdk.runtimes.OnnxRuntime
import pathweave.sdk.search.Candidate
import pathweave.sdk.search.Stopped
import pathweave.sdk.supernet.Cost
import pathweave.sdk.supernet.Goal
import pathweave.sdk.supernet.Kind
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.PlanCost
import pathweave.sdk.supernet.decodePlan
import pathweave.sdk.text

class StateFilesTest {
    @TempDir
    lateinit var folder: Path

    private val bundle = Adaptations.bundle
    private val runtime = OnnxRuntime()

    private fun state() = DeviceState(folder.toFile(), bundle, runtime)

    @Test
    fun `the pool that an adaptation leaves is Python's, and is written the same`() {
        val (vectors, written) = Adaptations.vectors["pool"] to Adaptations.vectors["pool"]["pool"]
        val candidates = vectors["found"].items.map {
            Candidate(
                decodePlan(it["plan"].toString().toByteArray()),
                Cost(it["cost"]["latency_ms"].double, it["cost"]["peak_bytes"].int.toLong()),
                it["accuracy"].double,
                it["expected"].takeIf { value -> value !is JsonNull }?.double,
            )
        }
        val expected = decodePool(written.toString().toByteArray())
        val chosen = candidates.first { it.subnet == expected.chosen }
        val (latencyMs, memoryMb) = listOf("latency_ms", "memory_mb").map { written["budget"][it].double }
        val found = adaptation(chosen, Goal(latencyMs = latencyMs, memoryMb = memoryMb), candidates)
        assertEquals(expected, poolOf(found))
        assertEquals(written, Json.parseToJsonElement(String(encodePool(poolOf(found)!!))))
        assertEquals(expected, expected.knownTo(bundle.supernet))
        assertNull(expected.copy(correction = 0.0).knownTo(bundle.supernet))
        assertNull(poolOf(found.copy(goal = Goal(memoryMb = 1.0))))
    }

    private fun adaptation(chosen: Candidate, goal: Goal, pool: List<Candidate>): Found {
        val (cost, ms) = PlanCost(0.5, chosen.cost.latencyMs, null, 0.0, 1) to 1.25 * chosen.cost.latencyMs
        return Found(
            chosen.plan,
            goal,
            expected = cost,
            heldOut = null,
            Measured(ms, ms to ms, ms, withinBudgetProbability = 1.0, fullMs = 4.0, slowdown = 1.0, prepareMs = 0.0),
            byKind = emptyMap(),
            accuracyInterval = 0.0 to 1.0,
            fullAccuracy = null,
            samples = 100,
            judged = 0,
            considered = pool.size,
            seconds = 1.0,
            Stopped.DONE,
            notes = emptyList(),
            pool,
        )
    }

    @Test
    fun `what was kept is there again, under its own conditions alone`() {
        val (now, state) = currentConditions() to state()
        val profile = Adaptations.profile.copy(conditions = now, runtime = runtime.identity)
        state.saveProfile(profile)
        assertEquals(profile, state().loadProfile(now))
        assertNull(state().loadProfile(now.copy(powerMode = "nvpmodel 15W")))
        val plan = Plan(bundle.supernet.anySizeOriginal.at(bundle.supernet.sizes[1]))
        state.savePlan(plan)
        assertEquals(plan, state().loadPlan())
        assertNull(state().loadPool())
    }

    @Test
    fun `files that cannot be read count as not there`(): Unit = runBlocking {
        val (now, state) = currentConditions() to state()
        state.saveProfile(Adaptations.profile.copy(conditions = now, runtime = runtime.identity))
        state.savePlan(Plan(bundle.supernet.original))
        val files = state.folder.listFiles()!!.filter { it.extension == "json" }
        assertEquals(2, files.size)
        for (broken in listOf("", "{", "[]", "{\"format\":99}", "{\"plan\":{\"format\":2}}", "\u0000")) {
            files.forEach { it.writeText(broken) }
            assertNull(state().loadProfile(now))
            assertNull(state().loadPlan())
        }
        AdaptiveModel.open(Contract.referenceFolder, Contract.key, stateFolder = folder.toFile()).use {
            assertEquals(bundle.supernet.original, it.plan.subnet)
        }
        for (broken in listOf("{}", "{\"format\":3}", "{\"format\":4,\"batch\":2}")) {
            assertRefused<UsageError> { decodeProfile(broken.toByteArray()) }
        }
    }

    @Test
    fun `every event of the log has the fields of the schema`() {
        val schema = Json.parseToJsonElement(File(Contract.repository, "docs/adaptation_log.schema.json").readText())
        val fields = schema["\$defs"].jsonObject.values.mapNotNull { it.jsonObject["properties"]?.jsonObject }
        val byEvent = fields.filter { "event" in it && "enum" in it.getValue("event").jsonObject }
            .associate { it.getValue("event")["enum"].items.single().text to it.keys.toList() }
        val candidate = Candidate(Plan(bundle.supernet.original), Cost(1.0, 1), 0.5)
        val adapted = adaptation(candidate, Goal(latencyMs = 9.0), listOf(candidate))
        state().saveProfile(Adaptations.profile)
        state().remember(adapted, searched = true)
        AdaptiveModel.open(Contract.referenceFolder, Contract.key, stateFolder = folder.toFile()).use { model ->
            model.adaptBlocking(Adaptations.inputs(), Goal(), setOf(Kind.EXITS))
            try {
                model.adaptBlocking(Adaptations.inputs(), Goal(latencyMs = 1e-9))
            } catch (_: InfeasibleBudgetError) {
                // logged
            }
        }
        val lines = File(state().folder, "adaptation.jsonl").readLines().map { Json.parseToJsonElement(it).jsonObject }
        for (line in lines) {
            assertEquals(listOf("schema", "time", "bundle", "runtime", "event"), line.keys.toList())
            assertTrue(Regex("\\d{4}-\\d\\d-\\d\\dT[\\d:.]{12}\\+00:00").matches(line.getValue("time").text))
            val event = line.getValue("event").jsonObject
            assertEquals(byEvent.getValue(event.getValue("event").text), event.keys.toList())
        }
        val events = lines.map { it.getValue("event")["event"].text }.toSet()
        assertEquals(setOf("profiled", "adapted", "opened", "plan_chosen", "infeasible"), events)
    }

    @Test
    fun `a log is rotated by size, loses no whole line and repairs a torn one`() {
        val path = File(folder.toFile(), "log/adaptation.jsonl")
        val log = AdaptationLog(path, "b".repeat(64), "none", maxBytes = 1000)
        repeat(3) { log.write(JsonObject(mapOf("number" to JsonPrimitive(it)))) }
        path.appendText("{\"torn")
        repeat(5) { log.write(JsonObject(mapOf("number" to JsonPrimitive(3 + it)))) }
        val files = listOf(File("$path.2"), File("$path.1"), path).filter { it.exists() }
        val numbers = files.flatMap { it.readLines() }.map { Json.parseToJsonElement(it)["event"]["number"].int }
        assertEquals((0..7).toList(), numbers)
        assertTrue(files.size > 1 && files.all { it.length() <= 1000 })
    }

    @Test
    fun `conditions are read where the system shows them`() {
        val root = folder.toFile()
        fun write(path: String, text: String) = File(root, path).apply { parentFile.mkdirs() }.writeText(text)
        assertEquals("unknown" to "none", currentConditions(root).let { it.powerMode to it.driver })
        write("proc/device-tree/model", "NVIDIA Jetson Orin Nano\u0000")
        write("var/lib/nvpmodel/status", "pmode:0002 fmode:quiet")
        write("etc/nvpmodel.conf", "< POWER_MODEL ID=2 NAME=15W >")
        write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "schedutil\n")
        write("sys/module/nvidia/version", "550.54.14\n")
        val found: Conditions = currentConditions(root)
        assertTrue(found.device.startsWith("NVIDIA Jetson Orin Nano, "))
        assertEquals("nvpmodel 15W, governor schedutil" to "nvidia 550.54.14", found.powerMode to found.driver)
    }
}
