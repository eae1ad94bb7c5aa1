/** `AdaptiveModel`: a bundle on a device, from opening it to its answers. Mirrors device_sdk/session/adaptive_model.py. */
package pathweave.sdk

import java.io.Closeable
import java.io.File
import pathweave.sdk.runtimes.OnnxRuntime
import pathweave.sdk.runtimes.Runtime
import pathweave.sdk.search.Adaptation
import pathweave.sdk.search.AdaptationProgress
import pathweave.sdk.search.AdaptationSettings
import pathweave.sdk.search.AdaptationStage
import pathweave.sdk.search.Calibration
import pathweave.sdk.search.CalibrationSettings
import pathweave.sdk.search.Calibrator
import pathweave.sdk.search.Inputs
import pathweave.sdk.search.PlanFinder

private const val NANOSECONDS_PER_MS = 1e6

/**
 * A packaged model that runs here. Make one with [AdaptiveModel.open].
 *
 * Calls may come from several threads; a call that has begun ends with the plan it began with.
 */
public class AdaptiveModel private constructor(
    public val bundle: Bundle,
    private val runtime: Runtime,
    private val clock: Clock,
    private val state: DeviceState? = null,
    private val lease: Closeable = Closeable {},
) : Closeable {
    private val samples = SampleChecker(bundle)

    /** Held by what changes the plan; calls never wait for it. */
    private val change = Any()

    /** Guards [active], so that no call sees half of a switch and nothing reopens a closed model. */
    private val exchange = Any()
    private var active: Active? = remembered() ?: Active(bundle, runtime, Plan(bundle.supernet.original))
    private var profile: Profile? = null // guarded by change

    /** The plan that was used last, if there is one and it still loads. */
    private fun remembered(): Active? = try {
        state?.loadPlan()?.let { Active(bundle, runtime, it) }
    } catch (_: PathweaveError) {
        null
    }

    /** The plan in use. */
    public val plan: Plan get() = synchronized(exchange) { running().plan }

    /** What images have to measure for the plan in use; null if the model takes no images. [use] may change it. */
    public val imageSize: ImageSize? get() = samples.imageSize(plan.inputSize)

    /**
     * Run [plan] from now on. The plan before it is closed after its last call returns.
     *
     * There is no offload client yet, so a plan that names a server runs on the device alone, as if the server did not
     * answer: the subnet answers past a split ([SUBNET]), and for the hard samples of [Hard.Ask], which are marked as
     * [FALLBACK]. An accuracy that was promised for such a plan with its server does not hold then. Hard samples of
     * [Hard.Abstain] get no label and are marked as [ABSTAINED].
     *
     * @throws UsageError it does not fit this bundle's graph, or does not run at its input size; the plan in use stays.
     * @throws ClosedError the model was closed.
     */
    public fun use(plan: Plan): Unit = synchronized(change) {
        exchange(plan)
        state?.savePlan(plan)
    }

    private fun exchange(plan: Plan) {
        synchronized(exchange) { running() }
        val new = Active(bundle, runtime, plan) // takes long: calls go on meanwhile
        val old = synchronized(exchange) {
            val replaced = active
            if (replaced != null) active = new
            replaced
        }
        if (old == null) {
            new.retire()
            running()
        }
        old?.retire()
    }

    /**
     * What blocks cost here at batch 1; measured once per bundle, runtime and condition, or [again].
     *
     * @throws RuntimeFailedError a block does not load or run.
     */
    public fun profile(again: Boolean = false, onProgress: (Double) -> Unit = {}): Profile = synchronized(change) {
        synchronized(exchange) { running() }
        val now = currentConditions()
        val known = if (again) null else profile ?: state?.loadProfile(now)
        val valid = known?.takeIf { it.validFor(bundle, runtime, now) }
        valid ?: profile(bundle, runtime, clock = clock, onProgress = onProgress).also {
            profile = it
            state?.saveProfile(it)
        }
    }

    /**
     * Search for the most accurate subnet within [budget] on private data, and switch to it. Blocking; see [adapt].
     *
     * [labels]: class indices, or null: then the full model's answers stand in. The old plan serves until the new one
     * is ready. [onProgress] may throw to give up; the plan in use then stays.
     *
     * @throws InfeasibleBudgetError no subnet fits; names the nearest. The plan in use stays.
     * @throws InputError samples or labels are not what the model takes.
     */
    public fun adaptBlocking(
        inputs: Inputs,
        labels: IntArray?,
        budget: Budget,
        settings: AdaptationSettings = AdaptationSettings(),
        onProgress: (AdaptationProgress) -> Unit = {},
    ): Adaptation = synchronized(change) {
        val profile = profile { onProgress(AdaptationProgress(AdaptationStage.PROFILE, it)) }
        val adaptation = try {
            PlanFinder(bundle, runtime, profile, settings, onProgress).find(inputs, labels, budget)
        } catch (error: InfeasibleBudgetError) {
            state?.log?.write(infeasible(budget, error))
            throw error
        }
        onProgress(AdaptationProgress(AdaptationStage.JUDGE, 1.0))
        use(adaptation.plan)
        state?.remember(adaptation)
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
        val calibration = Calibrator(bundle, runtime, profile(), settings).calibrate(plan.subnet, inputs, labels)
        use(calibration.plan)
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
     * @throws InputError another shape or type.
     * @throws ClosedError the model was closed.
     */
    public fun infer(tensor: Tensor): Answer = answer { samples.tensor(tensor, it) }

    /**
     * Answer for raw images of the size of the plan in use ([imageSize]; nothing is resized here).
     *
     * @throws InputError not what the model takes; says what was expected.
     * @throws ClosedError the model was closed.
     */
    public fun classify(vararg images: Image): Answer = answer { samples.prepare(images.asList(), it) }

    /** [prepare] is told the input size of the plan that answers. */
    private fun answer(prepare: (ImageSize?) -> Tensor): Answer {
        val taken = synchronized(exchange) { running().apply { enter() } }
        try {
            val tensor = prepare(taken.loaded.inputSize)
            val startedNs = clock()
            val outcome = taken.loaded.run(tensor)
            return Answer(
                output = outcome.output,
                source = sources(taken.plan, outcome),
                latencyMs = (clock() - startedNs) / NANOSECONDS_PER_MS,
                classNames = bundle.manifest.task.classNames,
            )
        } finally {
            taken.leave()
        }
    }

    /** Free the model, once the calls in progress have ended; answering then throws. May be called twice. */
    override fun close() {
        synchronized(exchange) { active.also { active = null } }?.retire()
        lease.close()
    }

    private fun running(): Active = active ?: throw ClosedError("the model was closed")

    public companion object {
        /**
         * Open the bundle in [folder] and make it ready to answer, with the full model.
         *
         * With [trust], an unsigned or wrongly signed bundle is refused. Every block runs its self-test, unless
         * [selfTested] says that this very bundle (by its digest) passed it here before; [blobs]: where the blobs lie,
         * if not in the folder itself. [stateFolder]: where profiles, the plan in use, the pool and the adaptation log
         * are kept, in the same files as Python's; with it the model starts with the plan that it used last. [exits]:
         * leaves out the others, whose blobs need not be here.
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
        ): AdaptiveModel {
            val bundle = Bundle.open(folder, trust, blobs, exits)
            val state = stateFolder?.let { DeviceState(it, bundle, runtime) }
            if (!selfTested(bundle.digest) && state?.selfTestPassed != true) {
                runSelfTest(bundle, runtime)
                state?.rememberSelfTest()
            }
            return AdaptiveModel(bundle, runtime, clock, state).also { state?.logOpened(it.plan) }
        }

        /**
         * A model of what [openAt] or [openStored] opened, which passed its self-test; closing it closes [opened].
         *
         * [stateFolder]: where profiles, the plan, the pool and the adaptation log are kept, if anywhere.
         */
        public fun open(
            opened: OpenedBundle,
            runtime: Runtime = OnnxRuntime(),
            clock: Clock = System::nanoTime,
            stateFolder: File? = null,
        ): AdaptiveModel {
            val state = stateFolder?.let { DeviceState(it, opened.bundle, runtime) }
            return AdaptiveModel(opened.bundle, runtime, clock, state, opened).also { state?.logOpened(it.plan) }
        }
    }
}

/** A plan, the model that runs it, and how many calls are in it: the last one to leave after [retire] frees it. */
private class Active(bundle: Bundle, runtime: Runtime, val plan: Plan) {
    val loaded = LoadedPlan(bundle, runtime, plan)
    private var users = 1 // the model itself is one, until it retires this; guarded by this

    fun enter() = synchronized(this) { users++ }

    fun leave() {
        if (synchronized(this) { --users } == 0) loaded.close()
    }

    fun retire() = leave()
}
