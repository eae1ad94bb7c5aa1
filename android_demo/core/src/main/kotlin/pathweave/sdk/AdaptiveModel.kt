/** `AdaptiveModel`: a bundle on a device, from opening it to its answers. */
package pathweave.sdk

import java.io.Closeable
import java.io.File
import pathweave.sdk.bundles.BLOBS
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.bundles.Trust
import pathweave.sdk.data.Image
import pathweave.sdk.data.Inputs
import pathweave.sdk.data.RawImages
import pathweave.sdk.data.RawSamples
import pathweave.sdk.data.RawTexts
import pathweave.sdk.execution.Active
import pathweave.sdk.execution.HomeReport
import pathweave.sdk.execution.Outcome
import pathweave.sdk.execution.PlanInUse
import pathweave.sdk.execution.Workspace
import pathweave.sdk.execution.runSelfTest
import pathweave.sdk.logs.AdaptationLog
import pathweave.sdk.logs.infeasible
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.offload.Privacy
import pathweave.sdk.policies.AdaptationProgress
import pathweave.sdk.policies.AdaptationSettings
import pathweave.sdk.policies.AdaptationStage
import pathweave.sdk.policies.Found
import pathweave.sdk.policies.Wish
import pathweave.sdk.policies.choose
import pathweave.sdk.profiling.Profile
import pathweave.sdk.profiling.currentConditions
import pathweave.sdk.profiling.profile
import pathweave.sdk.runtimes.OnnxRuntime
import pathweave.sdk.runtimes.Runtime
import pathweave.sdk.session.Answer
import pathweave.sdk.session.CheckedHomes
import pathweave.sdk.session.DeviceState
import pathweave.sdk.session.ElasticMemory
import pathweave.sdk.session.Exits
import pathweave.sdk.session.Live
import pathweave.sdk.session.OpenedBundle
import pathweave.sdk.session.Origin
import pathweave.sdk.session.PrivateSamples
import pathweave.sdk.session.Remote
import pathweave.sdk.session.Running
import pathweave.sdk.session.SUBNET
import pathweave.sdk.session.SampleChecker
import pathweave.sdk.session.TimedAnswers
import pathweave.sdk.session.checkHomes
import pathweave.sdk.session.loadExits
import pathweave.sdk.session.sources
import pathweave.sdk.supernet.Goal
import pathweave.sdk.supernet.Hard
import pathweave.sdk.supernet.Home
import pathweave.sdk.supernet.Kind
import pathweave.sdk.supernet.PROVIDERS
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Power
import pathweave.sdk.supernet.SampleSize
import pathweave.sdk.supernet.Uplink
import pathweave.sdk.supernet.considered
import pathweave.sdk.tasks.ClassTargets
import pathweave.sdk.tasks.Targets

private val FROM_SUBNET = listOf(SUBNET)

/**
 * A packaged model that runs here. Make one with [AdaptiveModel.open].
 *
 * Concurrency: everything may be called from any thread. What takes long suspends ([adapt], [profile], `exits.hold`,
 * `exits.place`), and has a twin named `…Blocking` that does the same in the calling thread, for Java and for threads of
 * one's own; changes of the plan wait for each other. Calls of the model are plain functions, and never wait for changes;
 * [acall] suspends instead. A call that has begun ends with the plan it began with. After [close] everything
 * throws [ClosedError].
 */
public class AdaptiveModel private constructor(
    workspace: Workspace,
    private val clock: Clock,
    private val state: DeviceState? = null,
    private val lease: Closeable = Closeable {},
    origin: Origin? = null,
    /** Of the homes with a provider of their own, which were checked: what runs there, and what does not. */
    public val homeReports: List<HomeReport> = emptyList(),
) : Closeable {
    private val runtime = workspace.runtime
    private val samples = SampleChecker(workspace.bundle)
    private val inUse = PlanInUse(workspace)
    private val timed = TimedAnswers(inUse, clock, ::answer)
    private val change = Any() // held by what changes the plan; calls never wait for it
    private var profile: Profile? = null // guarded by change

    /** The server's models that it may use. */
    public val remote: Remote = Remote(workspace.bundle, state?.log, ::use)

    private val memory = ElasticMemory(inUse, state?.log) { live.latency.resized() }

    /** What it keeps to by itself while the device, the network and the memory change. */
    public val live: Live = Live(state, inUse, remote, memory, change)

    /** The exits that are held here, and all that there are. */
    public val exits: Exits = Exits(inUse, state, origin, live, change)

    init {
        remote.before = {
            inUse.running()
            live.closeNetwork()
        }
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

    /** Every decision about the plan; null without a state folder. */
    public val log: AdaptationLog? get() = state?.log

    /** What images have to measure for the plan in use; null if the model takes no images. [use] may change it. */
    public val imageSize: SampleSize? get() = samples.imageSize(plan.inputSize)

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
     */
    public var memoryCapBytes: Long?
        get() = memory.capBytes
        set(capBytes) = memory.setCap(capBytes)

    /**
     * Run [plan] from now on. The plan before it is closed after its last call returns.
     *
     * Live update of latency and network ends. A plan that needs a server which is not connected, or which the privacy
     * setting keeps samples from, runs here alone, and the log of the process says so once; the hard samples concerned are
     * marked [pathweave.sdk.session.FALLBACK]. Hard samples of [pathweave.sdk.supernet.Hard.Abstain] get no label.
     *
     * @throws UsageError it does not fit this bundle's graph, does not run at its input size, or needs logits of a model that
     * is no classifier; the plan in use stays.
     */
    public fun use(plan: Plan) {
        val task = bundle.manifest.task
        if (!task.classifies && (plan.exits.isNotEmpty() || plan.hard !is Hard.AnswerLocally)) {
            throw UsageError("exits and deciders need a classifier; the model is for ${task.kind}")
        }
        synchronized(change) { exchange(plan, live::closePlans) }
        remote.sayWhatIsMissing(plan)
    }

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
     * What blocks cost here at batch 1; measured once per bundle, runtime, condition and memory cap, or [again].
     *
     * @throws RuntimeFailedError a block does not load or run.
     */
    public fun profileBlocking(again: Boolean = false, onProgress: (Double) -> Unit = {}): Profile = synchronized(change) {
        inUse.running()
        val now = currentConditions()
        val capBytes = memoryCapBytes
        val known = profile?.takeIf { it.validFor(bundle, runtime, now, capBytes) } ?: state?.loadProfile(now, capBytes)
        known?.takeIf { !again } ?: run {
            profile(inUse.lendWorkspace(), clock = clock, onProgress = onProgress)
        }.also {
            profile = it
            state?.saveProfile(it)
        }
    }

    /**
     * Find the best plan for [goal] on private [samples] ([inputs] makes them), and switch to it unless [take] is false.
     *
     * [consider]: kinds of plans; by default subnets, with them abstention where the goal leaves samples unanswered, and
     * asking the connected server where it may be sent inputs. Without subnets, the one in use is kept. [labels]: class
     * indices, or null: then the server's answers stand in, or else the full model's. [targets]: instead of labels, of
     * models of other tasks, which adapt subnets to a budget. The old plan serves until the new one is ready. [uplink]: planned with instead of the measured one. [power]: of the device; without it energies are
     * unknown. [onProgress]: on a thread of the work; it may throw to give up, and the plan in use then stays.
     *
     * @throws InfeasibleBudgetError no plan keeps the goal; names the nearest. The plan in use stays.
     * @throws InputError samples or labels are not what the model takes.
     * @throws UsageError a kind lacks what it needs, or a pool is to be filled without a latency.
     */
    public fun adaptBlocking(
        samples: Inputs,
        goal: Goal,
        consider: Set<Kind>? = null,
        labels: IntArray? = null,
        take: Boolean = true,
        settings: AdaptationSettings = AdaptationSettings(),
        uplink: Uplink? = null,
        power: Power? = null,
        targets: Targets? = null,
        onProgress: (AdaptationProgress) -> Unit = {},
    ): Found = synchronized(change) {
        if (labels != null && targets != null) throw UsageError("both labels and targets are given", "give one of them")
        if (settings.fillPool && !goal.limitsLatency) {
            throw UsageError("live update keeps a latency, and the goal has none", "set Goal(latencyMs = …)")
        }
        val client = remote.client
        val asked = client?.model?.privacy == Privacy.INPUTS && bundle.manifest.task.classifies
        val asks = if (asked) setOf(Kind.ASK) else emptySet()
        val kinds = considered(consider, goal, asks)
        val profile = profileBlocking { onProgress(AdaptationProgress(AdaptationStage.PROFILE, it)) }
        val wanted = targets ?: labels?.let(::ClassTargets)
        val wish = Wish(goal, kinds, plan, samples, wanted, live.latency.subnets, client, uplink, power)
        val found = try {
            choose(wish, inUse.lendWorkspace(), profile, settings, onProgress = onProgress)
        } catch (error: InfeasibleBudgetError) {
            state?.log?.write(infeasible(goal, error))
            throw error
        }
        onProgress(AdaptationProgress(AdaptationStage.JUDGE, 1.0))
        if (take) {
            val keepsSubnet = found.pool.isEmpty() && found.plan.subnet == plan.subnet
            exchange(found.plan, if (keepsSubnet) live::closeNetwork else live::closePlans)
            state?.remember(found, Kind.SUBNETS in kinds)
            live.remember(found, PrivateSamples(samples, wanted, settings, profile)) { done, total, note ->
                onProgress(AdaptationProgress(AdaptationStage.SEARCH, done.toDouble() / total, note))
            }
        }
        found
    }

    /**
     * Raw images of the model's own size as samples to adapt on; for other input sizes of the bundle they are resized.
     *
     * @throws InputError an image is not what the model takes; says what was expected.
     */
    public fun inputs(images: List<Image>): Inputs = samples.inputs(images)

    /**
     * Texts to adapt on, of a model of texts.
     *
     * @throws InputError a text is empty, or the bundle's tokenizer is not one that this SDK reads.
     * @throws UsageError the model takes other samples.
     */
    public fun textInputs(texts: List<String>): Inputs = samples.textInputs(texts)

    /**
     * Sounds to adapt on, of a model of sounds: one channel each, from −1 to 1, at the model's rate, of any length.
     *
     * @throws InputError a sound without samples, or with values that are no numbers.
     * @throws UsageError the model takes other samples.
     */
    public fun soundInputs(sounds: List<FloatArray>): Inputs = samples.soundInputs(sounds)

    /**
     * Values [count, *input] to adapt on, of a model of prepared values.
     *
     * @throws InputError another shape or type, or values that are no numbers.
     * @throws UsageError the model takes other samples.
     */
    public fun valueInputs(values: Tensor): Inputs = samples.valueInputs(values)

    /**
     * Prepared samples [count, *input] of the model's own size to adapt on.
     *
     * @throws InputError another shape or type, or values that are no numbers.
     */
    public fun inputs(tensor: Tensor): Inputs = samples.inputs(tensor)

    /**
     * Answer for raw images, resized to the size of the plan in use ([imageSize]) if the manifest says so.
     *
     * [deadlineMs]: from this call on; the answer is that of the last exit that is sure to be there by then, without
     * any server. The first call with a deadline for a batch size measures the steps, and its time begins then.
     *
     * @throws InputError another shape or type.
     * @throws InfeasibleDeadlineError not even the first exit is sure to be in time; says the least deadline.
     * @throws UsageError the deadline is not above 0.
     */
    public operator fun invoke(vararg images: Image, deadlineMs: Double? = null): Answer =
        answer(deadlineMs, RawImages(images.asList())) { samples.prepare(images.asList(), it) }

    /** The same for texts, as [textInputs] takes them. */
    public fun answerTexts(texts: List<String>, deadlineMs: Double? = null): Answer =
        answer(deadlineMs, RawTexts(texts)) { samples.prepareTexts(texts, it) }

    /** The same for sounds, as [soundInputs] takes them. */
    public fun answerSounds(sounds: List<FloatArray>, deadlineMs: Double? = null): Answer =
        answer(deadlineMs, null) { samples.prepareSounds(sounds, it) }

    /** The same for values [batch, *input] of a sensor or of features, which the manifest's statistics normalise. */
    public fun answerValues(values: Tensor, deadlineMs: Double? = null): Answer =
        answer(deadlineMs, null) { samples.prepareValues(values, it) }

    /** The same for prepared tensors of the size of the plan in use: [batch, *input] or one sample [*input]. */
    public fun infer(tensor: Tensor, deadlineMs: Double? = null): Answer =
        answer(deadlineMs, null) { samples.tensor(tensor, it) }

    /**
     * Begin an anytime run, exit by exit, without any server: it has the best answer so far and may be stopped at any
     * moment, from any thread.
     *
     * @throws InputError another shape or type.
     */
    public fun stream(image: Image): Running = timed.start { samples.prepare(listOf(image), it) }

    /** The same for a prepared tensor of the size of the plan in use. */
    public fun stream(tensor: Tensor): Running = timed.start { samples.tensor(tensor, it) }

    /**
     * By source (`exit <id>`, `subnet`): within how many milliseconds a run on batches like [tensor] is sure to have
     * that answer now.
     *
     * @throws InputError another shape or type.
     */
    public fun answerTimesMs(tensor: Tensor): Map<String, Double> = timed.answerTimesMs { samples.tensor(tensor, it) }

    /** [prepare] is told the input size of the plan that answers. [raw]: the samples before, where they can travel. */
    private fun answer(deadlineMs: Double?, raw: RawSamples?, prepare: (SampleSize?) -> Tensor): Answer {
        if (deadlineMs != null) return timed.byDeadline(deadlineMs, clock(), prepare)
        return inUse.call { active ->
            val tensor = prepare(active.loaded.inputSize)
            val startedNs = clock()
            val atSize = raw?.let { each -> { at: List<Int>, size: SampleSize? -> samples.prepare(each.at(at), size) } }
            val (output, source) = remote.answer(active.plan, active.loaded, tensor, raw, atSize)
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
        task = bundle.manifest.task,
        plan = plan,
    )

    /** Free the model, once the calls in progress have ended; answering then throws. May be called twice. */
    override fun close() {
        live.close()
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
         * [memoryCapBytes]: as the property. [homes]: instead of [runtime], where blocks may run ([pathweave.sdk.session.allHomes] has those of
         * this device): the first runs the full model, and what a plan names no home for. Each other one with a provider of
         * its own is checked once; one that fails is left out, with a warning and the reason in the log.
         *
         * @throws BundleError the bundle cannot be used (a kind of it says why).
         * @throws RuntimeFailedError the runtime refused a block, or has no such home.
         * @throws UsageError both a runtime and homes are given.
         */
        public fun open(
            folder: File,
            trust: Trust? = null,
            runtime: Runtime? = null,
            blobs: File = File(folder, BLOBS),
            selfTested: (digest: String) -> Boolean = { false },
            clock: Clock = System::nanoTime,
            stateFolder: File? = null,
            exits: Collection<String>? = null,
            memoryCapBytes: Long? = null,
            homes: List<Home>? = null,
        ): AdaptiveModel {
            val wanted = homes ?: listOf(Home())
            val bare = Bundle.open(folder, trust, blobs, exits = emptyList(), providersOf(wanted))
            val kept = stateFolder?.let { loadExits(it, bare.manifest.name, bare.digest) }
            val held = bare.withExits(kept ?: exits ?: bare.offered.exits.map { it.id })
            val checked = checkedHomes(held, runtime, homes, stateFolder)
            val bundle = held.runnableOn(providersOf(wanted.filter { "$it" !in checked.leftOut }))
            val state = stateFolder?.let { DeviceState(it, bundle, checked.runtime) }
            state?.removeTemporaries()
            if (!selfTested(bundle.digest) && state?.selfTestPassed != true) {
                runSelfTest(bundle.runnableOn(providersOf(wanted.take(1))), checked.runtime)
                state?.rememberSelfTest()
            }
            val workspace = Workspace(bundle, checked.runtime, memoryCapBytes, homes = checked.open)
            return AdaptiveModel(workspace, clock, state, homeReports = checked.reports)
                .also { state?.logOpened(it.plan, checked) }
        }

        /**
         * A model of what [openAt] or [openStored] opened, which passed its self-test; closing it closes [opened].
         *
         * [stateFolder]: where profiles, the plan, the pool and the adaptation log are kept, if anywhere.
         * [memoryCapBytes]: as the property. [homes]: as there; renditions for the processor run at them.
         *
         * @throws RuntimeFailedError there is no such home.
         * @throws UsageError both a runtime and homes are given.
         */
        public fun open(
            opened: OpenedBundle,
            runtime: Runtime? = null,
            clock: Clock = System::nanoTime,
            stateFolder: File? = null,
            memoryCapBytes: Long? = null,
            homes: List<Home>? = null,
        ): AdaptiveModel {
            val checked = checkedHomes(opened.bundle, runtime, homes, stateFolder ?: opened.stateFolder)
            val state = stateFolder?.let { DeviceState(it, opened.bundle, checked.runtime) }
            state?.removeTemporaries()
            val workspace = Workspace(opened.bundle, checked.runtime, memoryCapBytes, homes = checked.open)
            return AdaptiveModel(workspace, clock, state, opened, opened.origin, checked.reports)
                .also { state?.logOpened(it.plan, checked) }
        }

        private fun providersOf(homes: List<Home>) = homes.map { PROVIDERS[it.provider] ?: it.provider }.distinct()

        private fun checkedHomes(bundle: Bundle, runtime: Runtime?, homes: List<Home>?, stateFolder: File?): CheckedHomes {
            if (homes == null) return CheckedHomes(runtime ?: OnnxRuntime())
            if (runtime != null) throw UsageError("both a runtime and homes are given", "give one of them")
            return checkHomes(bundle, homes, stateFolder)
        }
    }
}
