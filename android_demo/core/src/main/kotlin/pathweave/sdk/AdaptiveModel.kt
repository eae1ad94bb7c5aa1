/** `AdaptiveModel`: a bundle on a device, from opening it to its answers. Mirrors device_sdk/session/adaptive_model.py. */
package pathweave.sdk

import java.io.Closeable
import java.io.File
import kotlin.math.roundToLong
import pathweave.sdk.bundles.BLOBS
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.bundles.Trust
import pathweave.sdk.data.Image
import pathweave.sdk.data.Inputs
import pathweave.sdk.execution.Active
import pathweave.sdk.execution.Outcome
import pathweave.sdk.execution.PlanInUse
import pathweave.sdk.execution.Workspace
import pathweave.sdk.execution.runSelfTest
import pathweave.sdk.live.DriftSettings
import pathweave.sdk.live.ElasticSettings
import pathweave.sdk.live.LiveSettings
import pathweave.sdk.logs.calibrated
import pathweave.sdk.logs.followed
import pathweave.sdk.logs.infeasible
import pathweave.sdk.logs.planChosen
import pathweave.sdk.memory_pressure.MemoryPressure
import pathweave.sdk.memory_pressure.SystemMemory
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.offload.RemoteModel
import pathweave.sdk.policies.Adaptation
import pathweave.sdk.policies.AdaptationProgress
import pathweave.sdk.policies.AdaptationSettings
import pathweave.sdk.policies.AdaptationStage
import pathweave.sdk.policies.Calibration
import pathweave.sdk.policies.CalibrationSettings
import pathweave.sdk.policies.Calibrator
import pathweave.sdk.policies.PlanFinder
import pathweave.sdk.policies.planning.PlanFront
import pathweave.sdk.profiling.Profile
import pathweave.sdk.profiling.currentConditions
import pathweave.sdk.profiling.profile
import pathweave.sdk.runtimes.OnnxRuntime
import pathweave.sdk.runtimes.Runtime
import pathweave.sdk.session.Answer
import pathweave.sdk.session.DeviceState
import pathweave.sdk.session.ElasticMemory
import pathweave.sdk.session.ExitSets
import pathweave.sdk.session.ExitsChosenBy
import pathweave.sdk.session.LiveKeeper
import pathweave.sdk.session.NetworkKeeper
import pathweave.sdk.session.OpenedBundle
import pathweave.sdk.session.Origin
import pathweave.sdk.session.PlacedExits
import pathweave.sdk.session.Planned
import pathweave.sdk.session.Planning
import pathweave.sdk.session.PrivateSamples
import pathweave.sdk.session.RemoteAnswers
import pathweave.sdk.session.Running
import pathweave.sdk.session.SUBNET
import pathweave.sdk.session.SampleChecker
import pathweave.sdk.session.TimedAnswers
import pathweave.sdk.session.Wish
import pathweave.sdk.session.loadExits
import pathweave.sdk.session.sources
import pathweave.sdk.supernet.Budget
import pathweave.sdk.supernet.ImageSize
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Power
import pathweave.sdk.supernet.Requirement
import pathweave.sdk.supernet.Uplink

private const val BYTES_PER_KB = 1000
private val FROM_SUBNET = listOf(SUBNET)

/**
 * A packaged model that runs here. Make one with [AdaptiveModel.open].
 *
 * Calls may come from several threads; a call that has begun ends with the plan it began with.
 */
public class AdaptiveModel private constructor(
    workspace: Workspace,
    private val clock: Clock,
    private val state: DeviceState? = null,
    private val lease: Closeable = Closeable {},
    origin: Origin? = null,
) : Closeable {
    private val runtime = workspace.runtime
    private val samples = SampleChecker(workspace.bundle)
    private val inUse = PlanInUse(workspace)
    private val timed = TimedAnswers(inUse, clock, ::answer)
    private val remote = RemoteAnswers(workspace.bundle, state?.log)
    private val network = NetworkKeeper(inUse, remote)
    private val live = LiveKeeper(state, inUse)
    private val memory = ElasticMemory(inUse, state?.log, live::resized)
    private val exitSets = ExitSets(inUse, state, origin, live::keepExits)

    /** Held by what changes the plan; calls never wait for it. */
    private val change = Any()
    private var profile: Profile? = null // guarded by change

    init {
        val remembered = state?.loadPlan()
        try {
            inUse.begin(remembered ?: Plan(bundle.supernet.original))
        } catch (error: PathweaveError) {
            if (remembered == null) throw error
            inUse.begin(Plan(bundle.supernet.original)) // the plan that was used last does not load any more
        }
    }

    /** What it runs. */
    public val bundle: Bundle get() = inUse.workspace.bundle

    /** The plan in use. */
    public val plan: Plan get() = inUse.running().plan

    /** What images have to measure for the plan in use; null if the model takes no images. [use] may change it. */
    public val imageSize: ImageSize? get() = samples.imageSize(plan.inputSize)

    /**
     * What all that is loaded and runs may take beyond the bare runtime, in bytes; null for no limit.
     *
     * May be set under running calls. What does not fit at once runs in pages, with the same answers; below its largest
     * block the path ends with an exit. The plan comes back as far as there is room when the cap rises. An adaptation
     * finds what runs under it without pages, if there is such a subnet; profiles, searches and what is measured keep to
     * it beside the plan in use, which first gives up what no call runs. A profile holds for its cap alone.
     *
     * @throws BudgetError not even the path to the plan's first exit fits; says the least that works. Nothing changes.
     * @throws UsageError it is not above 0.
     * @throws ClosedError the model was closed.
     */
    public var memoryCapBytes: Long?
        get() = memory.capBytes
        set(capBytes) = memory.setCap(capBytes)

    /**
     * Have the memory cap follow [pressure] from now on; the cap that is set is the most. It sinks at once, and running
     * calls then answer with the last exit that they reached; it rises when there has been room for a while.
     *
     * @throws MeasurementError there is no reading.
     * @throws ClosedError the model was closed.
     */
    public fun watchMemory(pressure: MemoryPressure = SystemMemory(), settings: ElasticSettings = ElasticSettings()) {
        inUse.running()
        memory.watch(pressure, settings)
    }

    /** Stay with the memory cap in use. May be called twice. */
    public fun stopWatchingMemory(): Unit = memory.stop()

    /**
     * Run [plan] from now on. The plan before it is closed after its last call returns.
     *
     * Live update ends, and so does following the network. A plan that needs a server which is not connected, or which the
     * privacy setting keeps samples from, runs here alone, and the log of the process says so once; the hard samples
     * concerned are marked [FALLBACK]. An accuracy that was promised for it with its server does not hold then. Hard
     * samples of [Hard.Abstain] get no label and are marked as [ABSTAINED].
     *
     * @throws UsageError it does not fit this bundle's graph, or does not run at its input size; the plan in use stays.
     * @throws ClosedError the model was closed.
     */
    public fun use(plan: Plan) {
        synchronized(change) { take(plan) }
        remote.sayWhatIsMissing(plan)
    }

    /** A plan on purpose: what follows conditions by itself ends. */
    private fun take(plan: Plan): Unit = exchange(plan) {
        live.close()
        network.close()
    }

    /**
     * Let a server's model answer what plans send to it: hard samples, or with `NAME:tail` the rest of paths.
     *
     * Nothing is sent that its privacy setting forbids: inputs need [pathweave.sdk.offload.Privacy.INPUTS]. An earlier
     * connection of the same kind ends. A plan that was restored by [open] uses the server from here on.
     *
     * @throws UsageError its address or its token is none.
     * @throws ClosedError the model was closed.
     */
    public fun connect(model: RemoteModel) {
        inUse.running()
        network.close()
        remote.connect(model)
    }

    /** Connect to no server any more: what plans send is answered here. May be called twice. */
    public fun disconnect() {
        network.close()
        remote.close()
    }

    /** The workspace in which all answers are corrected as those of the plan in use are. */
    private fun workspaceWithPrior() = inUse.lendWorkspace().copy(prior = inUse.running().plan.prior)

    /** Load the plan, store it, call [before], exchange it. If one of the first two fails, nothing changes. */
    private fun exchange(plan: Plan, before: () -> Unit = {}) {
        inUse.running()
        inUse.lendWorkspace()
        val loaded = inUse.load(plan) // takes long; calls go on with the old plan
        try {
            state?.savePlan(plan)
        } catch (error: StorageError) {
            loaded.close()
            throw error
        }
        before()
        inUse.exchange(Active(plan, loaded))
    }

    /**
     * Keep the latency budget while the device becomes slower and faster, with the subnets of the last adaptation.
     *
     * A thread watches how long single samples take, and exchanges the subnet for the most accurate that then fits. A
     * plan that is taken on purpose ends it. [budget]: another one than the adaptation's.
     *
     * @throws UsageError nothing was adapted to a latency budget here, or the plan in use is split or not of the pool.
     * @throws ClosedError the model was closed.
     */
    public fun watch(budget: Budget? = null, settings: LiveSettings = LiveSettings()): Unit = synchronized(change) {
        live.start(budget, settings)
    }

    /** Stay with the plan in use. May be called twice. */
    public fun stopWatching(): Unit = live.close()

    /** Whether live update keeps the budget. */
    public val watching: Boolean get() = live.isRunning

    /**
     * Choose a plan for [requirement] on private data, and run it from now on. Blocking. Live update ends.
     *
     * Plans are made of the subnets of the last adaptation, the one in use and the full model, with and without exits:
     * alone, abstaining from hard samples or asking the connected server about them, by three deciders, and of the server
     * alone. The server is asked about all samples once, if its privacy setting allows inputs. Exits that ask, splits and
     * fitted deciders are left to Python's planner; costs are those on the samples that chose. Unless memory is limited,
     * plans keep an exit at each cut point for deadlines and anytime answers.
     *
     * [labels]: class indices, or null: then the server's answers stand in, or else the full model's. [uplink]: planned
     * with instead of the measured one. [power]: of the device; without it energies are unknown. [followNetwork]: keep
     * bandwidth and round trip up to date and take another of these plans when they change, as [followNetwork] goes on to
     * do after [open].
     *
     * @throws InfeasibleBudgetError no plan keeps the requirement; names the nearest. The plan in use stays.
     * @throws InputError samples or labels are not what the model takes.
     * @throws UsageError a certainty is required, or there is no server whose network could be followed.
     */
    public fun planFor(
        images: List<Image>,
        labels: IntArray?,
        requirement: Requirement,
        uplink: Uplink? = null,
        power: Power? = null,
        followNetwork: Boolean = false,
    ): Planned = synchronized(change) {
        samples.requireLabelled(images, labels)
        if (requirement.certainty != null) throw UsageError("a certainty is promised by Python's planner only", "leave it out")
        val subnets = listOf(plan.subnet) + live.subnets
        val costs = profile().costModel()
        val planned = Planning(workspaceWithPrior(), costs, remote.escalator)
            .plan(images, labels, subnets, Wish(requirement, uplink, power))
        if (followNetwork && planned.front == null) {
            throw UsageError("there is no network to follow: the plan was made without a server", "connect first")
        }
        take(planned.choice.plan)
        val cost = planned.heldOut ?: planned.choice.cost
        state?.log?.write(planChosen(planned.choice, cost, requirement, planned.samples, planned.notes))
        if (followNetwork && planned.front != null) follow(planned.front.invoke(), DriftSettings(), keep = true)
        planned
    }

    private fun follow(front: PlanFront, settings: DriftSettings, keep: Boolean) {
        if (keep) state?.saveFront(front)
        live.close()
        network.start(front, settings) { choice, uplink -> state?.log?.write(followed(choice, front, uplink)) }
    }

    /**
     * Go on following the network, with the plans that the last planning kept for networks, in Kotlin or in Python.
     *
     * Connect the server first. Bandwidth and round trip are kept up to date from requests and probes; when they change,
     * another one of these plans takes over within seconds. The next [open] starts with the plan that was taken on
     * purpose. Live update ends.
     *
     * @throws UsageError no plans are kept here, or no server is connected that they know.
     * @throws ClosedError the model was closed.
     */
    public fun followNetwork(settings: DriftSettings = DriftSettings()): Unit = synchronized(change) {
        inUse.running()
        val front = state?.loadFront()
            ?: throw UsageError("no plans for other networks are kept here", "plan with followNetwork = true first")
        follow(front, settings, keep = false)
    }

    /** Stay with the plan in use, whatever the network does. May be called twice. */
    public fun stopFollowing(): Unit = network.close()

    /** Whether the network is followed. */
    public val following: Boolean get() = network.isRunning

    /** The exits that are held here; the bundle's manifest has all that there are as `offered`. */
    public val exits: List<String> get() = bundle.exits

    /**
     * Hold exactly these exits from now on, also when the bundle is opened again. Blocking.
     *
     * Blobs that are missing are fetched from the server that the bundle came from; new exits run their self-test.
     * Calls in progress end with the plan that they began with; then plans are without the exits that went. New ones
     * answer once [calibrateBlocking] or [use] has put them into the plan. The network is no longer followed.
     *
     * @throws UsageError the bundle has no such exit.
     * @throws TransferError, BlobError, StorageError, SelfTestError: a new exit cannot be had; the old set stays.
     * @throws ClosedError the model was closed.
     */
    public fun setExits(exits: Collection<String>): Unit = synchronized(change) {
        inUse.running()
        network.close() // it would take plans with exits that go
        exitSets.exchange(exits, ExitsChosenBy.CALLER)
    }

    /**
     * Hold the exits worth their memory (MEEdge §3.3), as the server of the bundle chooses them. Blocking.
     *
     * [memoryKb]: for all branches, in kilobytes; null for no limit. If the server does not answer, or its answer does
     * not hold, the device chooses among the exits that are here, and the result says why.
     *
     * @throws UsageError a negative memory.
     * @throws StorageError, SelfTestError: a new exit cannot be had; the old set stays.
     * @throws ClosedError the model was closed.
     */
    public fun placeExits(memoryKb: Double? = null): PlacedExits = synchronized(change) {
        inUse.running()
        if (memoryKb != null && !(memoryKb >= 0)) {
            throw UsageError("the memory for exits is $memoryKb kB; it cannot be negative")
        }
        network.close()
        exitSets.place(memoryKb?.let { (it * BYTES_PER_KB).roundToLong() })
    }

    /**
     * What blocks cost here at batch 1; measured once per bundle, runtime, condition and memory cap, or [again].
     *
     * @throws RuntimeFailedError a block does not load or run.
     */
    public fun profile(again: Boolean = false, onProgress: (Double) -> Unit = {}): Profile = synchronized(change) {
        inUse.running()
        val now = currentConditions()
        val capBytes = memoryCapBytes
        val known = profile?.takeIf { it.validFor(bundle, runtime, now, capBytes) } ?: state?.loadProfile(now, capBytes)
        known?.takeIf { !again } ?: run {
            inUse.lendWorkspace()
            profile(bundle, runtime, clock = clock, memoryCapBytes = capBytes, onProgress = onProgress)
        }.also {
            profile = it
            state?.saveProfile(it)
        }
    }

    /**
     * Search for the most accurate subnet within [budget] on private data, and switch to it. Blocking; see [adapt].
     *
     * [labels]: class indices, or null: then the full model's answers stand in. The old plan serves until the new one
     * is ready. [onProgress] may throw to give up; the plan in use then stays.
     * [live]: look for subnets of other latencies too, about as long again, with the new plan in use, and [watch] from
     * then on; else an earlier watch ends. [keepSamples]: in memory, until the next adaptation or [close], so that live
     * update searches again when no subnet of the pool keeps the budget.
     *
     * @throws InfeasibleBudgetError no subnet fits; names the nearest. The plan in use stays.
     * @throws InputError samples or labels are not what the model takes.
     * @throws UsageError [live] without a latency budget.
     */
    public fun adaptBlocking(
        inputs: Inputs,
        labels: IntArray?,
        budget: Budget,
        settings: AdaptationSettings = AdaptationSettings(),
        live: Boolean = false,
        keepSamples: Boolean = false,
        onProgress: (AdaptationProgress) -> Unit = {},
    ): Adaptation = synchronized(change) {
        if (live && budget.latencyMs == null) {
            throw UsageError("live update keeps a latency budget, and there is none", "set Budget(latencyMs = …)")
        }
        val profile = profile { onProgress(AdaptationProgress(AdaptationStage.PROFILE, it)) }
        val adaptation = try {
            inUse.lendWorkspace()
            PlanFinder(bundle, runtime, profile, settings, memoryCapBytes, onProgress = onProgress).find(inputs, labels, budget)
        } catch (error: InfeasibleBudgetError) {
            state?.log?.write(infeasible(budget, error))
            throw error
        }
        onProgress(AdaptationProgress(AdaptationStage.JUDGE, 1.0))
        take(adaptation.plan)
        state?.remember(adaptation)
        val private = PrivateSamples(inputs, labels, settings, profile)
        this.live.remember(adaptation, private, fill = live, keep = keepSamples) { done, total, note ->
            onProgress(AdaptationProgress(AdaptationStage.SEARCH, done.toDouble() / total, note))
        }
        if (live) this.live.start(null, LiveSettings())
        adaptation
    }

    /**
     * Set the exits and the threshold of hard samples for the subnet in use, and switch to that plan. Blocking.
     *
     * [inputs] and [labels] as for [adaptBlocking], but others than those it searched on; without labels the subnet's
     * own answers stand in.
     *
     * @throws InputError samples or labels are not what the model takes.
     */
    public fun calibrateBlocking(
        inputs: Inputs,
        labels: IntArray?,
        settings: CalibrationSettings = CalibrationSettings(),
    ): Calibration = synchronized(change) {
        val profile = profile()
        val calibration = Calibrator(workspaceWithPrior(), profile, settings).calibrate(plan.subnet, inputs, labels)
        exchange(calibration.plan)
        live.follow()
        state?.log?.write(calibrated(calibration))
        calibration
    }

    /**
     * Raw images of the model's own size as samples to adapt on; for other input sizes of the bundle they are resized.
     *
     * @throws InputError an image is not what the model takes; says what was expected.
     */
    public fun inputs(images: List<Image>): Inputs = samples.inputs(images)

    /**
     * Prepared samples [count, *input] of the model's own size to adapt on.
     *
     * @throws InputError another shape or type, or values that are no numbers.
     */
    public fun inputs(tensor: Tensor): Inputs = samples.inputs(tensor)

    /**
     * Answer for prepared tensors of the size of the plan in use: [batch, *input] or one sample [*input].
     *
     * [deadlineMs]: from this call on; the answer is that of the last exit that is sure to be there by then, without
     * any server. The first call with a deadline for a batch size measures the steps, and its time begins then.
     *
     * @throws InputError another shape or type.
     * @throws InfeasibleDeadlineError not even the first exit is sure to be in time; says the least deadline.
     * @throws UsageError the deadline is not above 0.
     * @throws ClosedError the model was closed.
     */
    public fun infer(tensor: Tensor, deadlineMs: Double? = null): Answer =
        answer(deadlineMs, null) { samples.tensor(tensor, it) }

    /**
     * Answer for raw images, resized to the size of the plan in use ([imageSize]) if the manifest says so.
     *
     * [deadlineMs] and what is thrown: as for [infer].
     */
    public fun classify(vararg images: Image, deadlineMs: Double? = null): Answer =
        answer(deadlineMs, images.asList()) { samples.prepare(images.asList(), it) }

    /**
     * Begin an anytime run, exit by exit, without any server: it has the best answer so far and may be stopped at any
     * moment, from any thread.
     *
     * @throws InputError another shape or type.
     * @throws ClosedError the model was closed.
     */
    public fun start(tensor: Tensor): Running = timed.start { samples.tensor(tensor, it) }

    /** The same for a raw image of the size of the plan in use. */
    public fun start(image: Image): Running = timed.start { samples.prepare(listOf(image), it) }

    /**
     * By source (`exit <id>`, `subnet`): within how many milliseconds a run on batches like [tensor] is sure to have
     * that answer now.
     *
     * @throws InputError another shape or type.
     * @throws ClosedError the model was closed.
     */
    public fun answerTimesMs(tensor: Tensor): Map<String, Double> = timed.answerTimesMs { samples.tensor(tensor, it) }

    /** [prepare] is told the input size of the plan that answers. [images]: before they were prepared, if known. */
    private fun answer(deadlineMs: Double?, images: List<Image>?, prepare: (ImageSize?) -> Tensor): Answer {
        if (deadlineMs != null) return timed.byDeadline(deadlineMs, clock(), prepare)
        return inUse.call { active ->
            val tensor = prepare(active.loaded.inputSize)
            val startedNs = clock()
            val (output, source) = remote.answer(active.plan, active.loaded, tensor, images)
            val answer = answer(active.plan, output, source, startedNs)
            // the time of exits and servers is not the subnet's
            if (active.times != null && source == FROM_SUBNET) active.times.record(answer.latencyMs)
            answer
        }
    }

    private fun answer(plan: Plan, outcome: Outcome, startedNs: Long): Answer =
        answer(plan, outcome.output, sources(plan, outcome), startedNs)

    private fun answer(plan: Plan, output: Tensor, source: List<String>, startedNs: Long) = Answer(
        output = output,
        source = source,
        latencyMs = (clock() - startedNs) / NANOSECONDS_PER_MS,
        classNames = bundle.manifest.task.classNames,
        plan = plan,
    )

    /** Free the model, once the calls in progress have ended; answering then throws. May be called twice. */
    override fun close() {
        memory.stop()
        network.close()
        live.close()
        live.forget()
        inUse.close()
        timed.close()
        remote.close()
        lease.close()
    }

    public companion object {
        /**
         * Open the bundle in [folder] and make it ready to answer, with the full model.
         *
         * With [trust], an unsigned or wrongly signed bundle is refused. Every block runs its self-test, unless
         * [selfTested] says that this very bundle (by its digest) passed it here before; [blobs]: where the blobs lie,
         * if not in the folder itself. [stateFolder]: where profiles, the plan in use, the pool and the adaptation log
         * are kept, in the same files as Python's; with it the model starts with the plan that it used last. [exits]:
         * leaves out the others, whose blobs need not be here, unless it was decided since which are kept.
         * [memoryCapBytes]: as the property.
         *
         * @throws BundleError the bundle cannot be used (a kind of it says why).
         * @throws RuntimeFailedError the runtime refused a block.
         */
        public fun open(
            folder: File,
            trust: Trust? = null,
            runtime: Runtime = OnnxRuntime(),
            blobs: File = File(folder, BLOBS),
            selfTested: (digest: String) -> Boolean = { false },
            clock: Clock = System::nanoTime,
            stateFolder: File? = null,
            exits: Collection<String>? = null,
            memoryCapBytes: Long? = null,
        ): AdaptiveModel {
            val bare = Bundle.open(folder, trust, blobs, exits = emptyList())
            val kept = stateFolder?.let { loadExits(it, bare.manifest.name, bare.digest) }
            val bundle = bare.withExits(kept ?: exits ?: bare.offered.exits.map { it.id })
            val state = stateFolder?.let { DeviceState(it, bundle, runtime) }
            state?.removeTemporaries()
            if (!selfTested(bundle.digest) && state?.selfTestPassed != true) {
                runSelfTest(bundle, runtime)
                state?.rememberSelfTest()
            }
            val workspace = Workspace(bundle, runtime, memoryCapBytes)
            return AdaptiveModel(workspace, clock, state).also { state?.logOpened(it.plan) }
        }

        /**
         * A model of what [openAt] or [openStored] opened, which passed its self-test; closing it closes [opened].
         *
         * [stateFolder]: where profiles, the plan, the pool and the adaptation log are kept, if anywhere.
         * [memoryCapBytes]: as the property.
         */
        public fun open(
            opened: OpenedBundle,
            runtime: Runtime = OnnxRuntime(),
            clock: Clock = System::nanoTime,
            stateFolder: File? = null,
            memoryCapBytes: Long? = null,
        ): AdaptiveModel {
            val state = stateFolder?.let { DeviceState(it, opened.bundle, runtime) }
            state?.removeTemporaries()
            val workspace = Workspace(opened.bundle, runtime, memoryCapBytes)
            return AdaptiveModel(workspace, clock, state, opened, opened.origin).also { state?.logOpened(it.plan) }
        }
    }
}
