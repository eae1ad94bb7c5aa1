package pathweave.sdk.policies

import java.io.File
import java.nio.file.Path
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.Timeout
import org.junit.jupiter.api.io.TempDir
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.BudgetError
import pathweave.sdk.Contract
import pathweave.sdk.InfeasibleBudgetError
import pathweave.sdk.SplitMix64
import pathweave.sdk.UsageError
import pathweave.sdk.assertRefused
import pathweave.sdk.data.searchPositions
import pathweave.sdk.double
import pathweave.sdk.drawnImages
import pathweave.sdk.execution.Workspace
import pathweave.sdk.get
import pathweave.sdk.items
import pathweave.sdk.logs.readLog
import pathweave.sdk.numerics.argmax
import pathweave.sdk.policies.exits.withFurtherExits
import pathweave.sdk.runtimes.OnnxRuntime
import pathweave.sdk.search.Candidate
import pathweave.sdk.session.Signal
import pathweave.sdk.subnetOf
import pathweave.sdk.subnetsOf
import pathweave.sdk.supernet.Cost
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Goal
import pathweave.sdk.supernet.Hard
import pathweave.sdk.supernet.Kind
import pathweave.sdk.supernet.Optimised
import pathweave.sdk.supernet.Plan
import pathweave.sdk.tasks.ClassTargets
import pathweave.sdk.text
import pathweave.sdk.texts

private const val COUNT = 61

/** What is chosen for a goal, of which kinds, on which samples. */
@Timeout(60)
class ChooserTest {
    private val bundle = Contract.reference()
    private val supernet = bundle.supernet
    private val images = drawnImages(COUNT)
    private val labels = SplitMix64(4).let { random -> IntArray(COUNT) { random.below(3) } }

    private fun open(state: File? = null) =
        AdaptiveModel.open(Contract.referenceFolder, Contract.key, selfTested = { true }, stateFolder = state)

    private val vectors = Json.parseToJsonElement(
        File(Contract.repository, "tests/contract/shortlists.json").readText(),
    )

    @Test
    fun `other plans are made of the same subnets as in Python, in the same order`() {
        for (case in vectors["shortlist"].items) {
            val pool = case["pool"].items.map { one ->
                val (subnet, latencyMs, accuracy, expected) = one.items
                Candidate(Plan(subnetOf(subnet.text)), Cost(latencyMs.double, 1000), accuracy.double, expected.orNull)
            }
            assertEquals(case["shortlist"].texts, subnetsOf(shortlist(supernet.original, pool, case["latency_ms"].orNull)))
        }
    }

    private val JsonElement.orNull: Double? get() = if (this is JsonNull) null else double

    @Test
    fun `deadlines get the same exits as in Python`() {
        for (case in vectors["further_exits"].items) {
            val plan = Plan(supernet.original, choices(case["exits"]))
            assertEquals(choices(case["further"]), withFurtherExits(supernet, plan).exits)
        }
    }

    private fun choices(exits: JsonElement) = exits.items.map { one ->
        ExitChoice(one["exit"].text, one["threshold"].double, one["rendition"].text)
    }

    @Test
    fun `some samples choose and others judge, as the plan in use then answers`(@TempDir folder: Path) {
        open(folder.toFile()).use { model ->
            val goal = Goal(accuracy = 0.01, latencyMs = 1e6)
            val found = model.adaptBlocking(model.inputs(images), goal, labels = labels)
            assertEquals(found.plan, model.plan)
            val right = List(COUNT) { argmax(model(images[it]).output)[0] == labels[it] }
            val (choosing, judging) = searchPositions(labels, 0.3, 0)
            fun share(of: List<Int>) = of.count { right[it] }.toDouble() / of.size
            assertEquals(COUNT to judging.size, found.samples to found.judged)
            assertEquals(share(choosing), found.expected.accuracy!!, 1e-12)
            assertEquals(share(judging), found.heldOut!!.accuracy!!, 1e-12)
            assertTrue(found.measured!!.latencyMs > 0 && found.notes.isEmpty())
            assertEquals(setOf("subnet"), found.byKind.keys)
        }
        assertEquals("adapted", readLog(logPath(folder)).last().event)
    }

    private fun logPath(folder: Path) = pathweave.sdk.session.logPath(folder.toFile(), bundle)

    @Test
    fun `without other subnets the one in use is kept, and a drop is one below its own accuracy`(@TempDir folder: Path) {
        open(folder.toFile()).use { model ->
            val goal = Goal(optimise = Optimised.LATENCY_MS, maxDrop = 0.5)
            val found = model.adaptBlocking(model.inputs(images), goal, setOf(Kind.EXITS))
            assertEquals(supernet.original to 1.0, found.plan.subnet to found.byKind.getValue("subnet").cost.accuracy)
            assertTrue(found.expected.accuracy!! >= 0.5 && found.pool.isEmpty())
            found.measured?.let { assertTrue(it.latencyMs < it.withoutExitsMs!!) }
            assertEquals(found.plan, withFurtherExits(supernet, found.plan), "deadlines have an exit at every cut point")
        }
        val logged = readLog(logPath(folder)).last()
        assertEquals("plan_chosen" to "$COUNT", logged.event to logged.fields["samples"])
    }

    @Test
    fun `hard samples may stay without an answer where the goal allows it`() {
        open().use { model ->
            val samples = model.inputs(images)
            val goal = Goal(accuracy = 0.6, coverage = 0.2)
            val found = model.adaptBlocking(samples, goal, labels = labels, take = false)
            assertTrue(found.plan.hard is Hard.Abstain && found.expected.coverage in 0.2..1.0, "${found.plan}")
            assertNull(found.measured)
            assertEquals(Plan(supernet.original), model.plan, "it was not to be taken")
            assertRefused<InfeasibleBudgetError> { model.adaptBlocking(samples, goal, setOf(Kind.SUBNETS), labels) }
        }
    }

    @Test
    fun `few samples all choose, and what no plan keeps is refused`() {
        open().use { model ->
            val few = model.inputs(images.take(20))
            val found = model.adaptBlocking(few, Goal(), setOf(Kind.EXITS), labels.copyOf(20), take = false)
            assertEquals(0, found.judged)
            assertNull(found.heldOut)
            val (samples, before) = model.inputs(images) to model.plan
            val tooFast = Goal(latencyMs = 1e-9)
            for (kinds in listOf(setOf(Kind.EXITS), setOf(Kind.SUBNETS, Kind.EXITS))) {
                assertRefused<InfeasibleBudgetError> { model.adaptBlocking(samples, tooFast, kinds, labels) }
            }
            assertEquals(before, model.plan)
            assertRefused<UsageError> { model.live.start(Signal.NETWORK) }
        }
    }

    @Test
    fun `a kind that lacks what it needs says what, and a goal that contradicts itself is none`() {
        open().use { model ->
            fun refused(goal: Goal, vararg kinds: Kind) = assertRefused<UsageError> {
                model.adaptBlocking(model.inputs(images), goal, kinds.toSet())
            }.message
            assertEquals("no server is connected that answers samples", refused(Goal(), Kind.ASK))
            assertEquals("splits and hybrids are planned by Python", refused(Goal(), Kind.SPLIT))
            assertEquals("no kind of plan may be considered", refused(Goal()))
            assertEquals(
                "a certainty is promised by Python's planner only",
                refused(Goal(accuracy = 0.5, certainty = 0.9), Kind.SUBNETS),
            )
            model.exits.holdBlocking(emptyList())
            assertEquals("there are no exits here", refused(Goal(), Kind.EXITS))
        }
        for (nonsense in listOf<() -> Goal>(
            { Goal(latencyMs = 1.0, latencyRatio = 0.5) },
            { Goal(accuracy = 0.5, maxDrop = 0.1) },
            { Goal(certainty = 0.9) },
            { Goal(latencyMs = 0.0) },
            { Goal(memoryMb = -1.0) },
            { Goal(coverage = 1.5) },
            { Goal(shareAsked = Double.NaN) },
            { Goal(percentile = 100.0) },
        )) {
            assertRefused<BudgetError> { nonsense() }
        }
    }

    @Test
    fun `exits that save no time when they are measured are left out, and a note says so`() {
        val fullMs = Adaptations.profile.costModel().latencyMs(supernet.original)
        fun find(latencyMs: Double): Found {
            val (goal, inUse) = Goal(latencyMs = latencyMs) to Plan(supernet.original)
            val wish = Wish(goal, setOf(Kind.EXITS), inUse, Adaptations.inputs(), ClassTargets(Adaptations.labels))
            return choose(wish, Workspace(bundle, OnnxRuntime()), Adaptations.profile, AdaptationSettings())
        }
        val found = find(1.1 * fullMs)
        val leaves = found.plan.exits.any { it.decides }
        assertEquals(leaves, found.measured != null)
        assertTrue(leaves || found.notes.all { it.startsWith("exits are left out") }, "${found.notes}")
        assertTrue(found.expected.latencyMs!! <= 1.1 * fullMs && found.heldOut!!.accuracy!! in 0.0..1.0)
        assertRefused<InfeasibleBudgetError> { find(fullMs / 1000) }
    }
}
