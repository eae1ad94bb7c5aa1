package pathweave.sdk.session

import java.nio.file.Path
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.Contract
import pathweave.sdk.RuntimeFailedError
import pathweave.sdk.UsageError
import pathweave.sdk.assertRefused
import pathweave.sdk.execution.goldenInputs
import pathweave.sdk.policies.Adaptations
import pathweave.sdk.runtimes.OnnxRuntime
import pathweave.sdk.subnetOf
import pathweave.sdk.supernet.Goal
import pathweave.sdk.supernet.Home
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Subnet

/** A bundle that is opened at several homes, by name. */
class HomesOpeningTest {
    private val homes = listOf(Home(), Home(threads = 2))
    private val mixed = Plan(subnetOf("o0 o1~cpu-2t o2~cpu-2t o3"))
    private val input = goldenInputs(Contract.reference().supernet.cutPoints[0], 5L, 2)[0]

    @Test
    fun `a plan runs at the homes that it names and the labels are the same`() {
        AdaptiveModel.open(Contract.referenceFolder, Contract.key, homes = homes).use { model ->
            val labels = model.infer(input).labels
            model.use(mixed)
            val answer = model.infer(input)
            assertEquals(labels to mixed, answer.labels to answer.plan)
        }
    }

    @Test
    fun `a plan at a home that is not open is refused and the plan in use stays`() {
        AdaptiveModel.open(Contract.referenceFolder, Contract.key, selfTested = { true }).use { model ->
            val before = model.plan
            assertRefused<RuntimeFailedError> { model.use(mixed) }
            assertEquals(before, model.plan)
        }
    }

    @Test
    fun `the plan that was used last comes back where its homes are open`(@TempDir folder: Path) {
        fun open(at: List<Home>) =
            AdaptiveModel.open(Contract.referenceFolder, Contract.key, stateFolder = folder.toFile(), homes = at)
        open(homes).use { it.use(mixed) }
        open(homes).use { assertEquals(mixed, it.plan) }
        open(homes.take(1)).use { assertEquals(it.bundle.supernet.original, it.plan.subnet) }
    }

    @Test
    fun `a home whose provider is not here is refused`() {
        val error = assertRefused<RuntimeFailedError> {
            AdaptiveModel.open(Contract.referenceFolder, Contract.key, homes = homes + Home("nnapi"))
        }
        assertTrue("NnapiExecutionProvider" in error.message!!)
    }

    @Test
    fun `homes and a runtime together are refused and so are no homes`() {
        assertRefused<UsageError> { AdaptiveModel.open(Contract.referenceFolder, runtime = OnnxRuntime(), homes = homes) }
        for (wrong in listOf(emptyList(), homes + Home())) {
            assertRefused<UsageError> { AdaptiveModel.open(Contract.referenceFolder, homes = wrong) }
        }
    }

    @Test
    fun `the homes are in the log`(@TempDir folder: Path) {
        val log = AdaptiveModel.open(Contract.referenceFolder, Contract.key, stateFolder = folder.toFile(), homes = homes)
            .use { it.log!!.path.readText() }
        assertTrue("\"homes\":[\"cpu-1t\",\"cpu-2t\"],\"homes_left_out\":{}" in log, log)
    }

    @Test
    fun `adapting measures both homes and takes a plan that runs`(@TempDir folder: Path) {
        AdaptiveModel.open(Contract.referenceFolder, Contract.key, stateFolder = folder.toFile(), homes = homes).use { model ->
            val found = model.adaptBlocking(Adaptations.inputs(), Goal(latencyMs = 1000.0), labels = Adaptations.labels)
            assertEquals(found.plan, model.plan)
            val profile = model.profileBlocking()
            assertEquals(setOf("", "cpu-2t"), profile.edges.keys.map { it.home }.toSet())
            val sample = Adaptations.inputs().take(listOf(0, 1, 2), model.plan.inputSize)
            val labels = model.infer(sample).labels
            model.use(Plan(Subnet(found.plan.subnet.edges.map { it.on("") })))
            assertEquals(model.infer(sample).labels, labels)
            model.use(found.plan)
        }
    }

    @Test
    fun `a limit of threads keeps a search at homes that have no more`(@TempDir folder: Path) {
        AdaptiveModel.open(Contract.referenceFolder, Contract.key, stateFolder = folder.toFile(), homes = homes).use { model ->
            val goal = Goal(latencyMs = 1000.0, threads = 1)
            val found = model.adaptBlocking(Adaptations.inputs(), goal, labels = Adaptations.labels)
            assertEquals(setOf(""), found.pool.flatMap { it.subnet.edges }.map { it.home }.toSet())
        }
    }
}
