/**
 * What servers add to a plan's answers: the tails of split plans, and the hard samples. Marks each answer's source.
 */
package pathweave.sdk.session

import java.io.Closeable
import kotlinx.serialization.json.JsonPrimitive
import pathweave.sdk.LOG
import pathweave.sdk.UsageError
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.data.RawSamples
import pathweave.sdk.execution.AFTER_FAILURE
import pathweave.sdk.execution.AT_END
import pathweave.sdk.execution.AT_SERVER
import pathweave.sdk.execution.AtSize
import pathweave.sdk.execution.LoadedPlan
import pathweave.sdk.execution.Outcome
import pathweave.sdk.execution.corrected
import pathweave.sdk.logs.AdaptationLog
import pathweave.sdk.logs.event
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.offload.Activations
import pathweave.sdk.offload.AskClient
import pathweave.sdk.offload.AskedShare
import pathweave.sdk.offload.DeviceModel
import pathweave.sdk.offload.LinkEstimate
import pathweave.sdk.offload.LinkProbe
import pathweave.sdk.offload.RemoteModel
import pathweave.sdk.offload.RemoteReply
import pathweave.sdk.offload.RequestListener
import pathweave.sdk.offload.TailClient
import pathweave.sdk.offload.runsTails
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.Hard
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.RemoteRef
import pathweave.sdk.supernet.Sends
import pathweave.sdk.supernet.Split
import pathweave.sdk.supernet.decodePlan
import pathweave.sdk.supernet.hardSamples

private const val ESCALATING = "escalating" // events of the adaptation log
private const val SPLITTING = "splitting"

/** What plans do with [link] while the network is followed; [answerMs]: what the server works on one sample. */
private class Told(val link: LinkEstimate, val answerMs: Double)

/**
 * The servers that a model is connected to: one model that answers samples, one that runs tails. Thread-safe.
 *
 * A plan names the server's model. If another one is connected, nothing is sent and the device's own answer stands. The
 * log notes when a server stops answering and when it answers again.
 */
public class Remote internal constructor(
    private val bundle: Bundle,
    private val log: AdaptationLog?,
    private val use: (Plan) -> Unit = {},
) {
    /** Called before the connection changes. */
    internal var before: () -> Unit = {}

    private val digest = bundle.digest
    private val version = bundle.manifest.version
    private val device = bundle.offered.let { manifest ->
        DeviceModel(
            manifest.task.classNames,
            manifest.cutPoints.first().tensors[0].shape,
            manifest.cutPoints.last().tensors[0].shape,
            manifest.preprocessing,
            manifest.task.kind,
            manifest.cutPoints.first().tensors[0].dtype,
        )
    }
    private val answering = HashMap<String, Boolean>() // by event; guarded by itself

    /** What asks the model that answers samples; null without one. */
    @Volatile
    internal var client: AskClient? = null
        private set

    @Volatile
    private var tail: TailClient? = null

    @Volatile
    private var told: Told? = null

    @Volatile
    private var share: AskedShare? = null

    /** The connected model that answers samples, or else that runs tails; null without a server. */
    public val model: RemoteModel? get() = client?.model ?: tail?.model

    /**
     * Let a server's model answer what plans send to it: hard samples, or with `NAME:tail` the rest of paths.
     *
     * Nothing is sent that its privacy setting forbids: inputs need [pathweave.sdk.offload.Privacy.INPUTS]. An earlier
     * connection of the same kind ends. A plan that was restored by opening uses the server from here on.
     *
     * @throws UsageError its address or its token is none.
     */
    public fun connect(model: RemoteModel) {
        before()
        val old: Closeable?
        synchronized(answering) {
            if (runsTails(model.model)) {
                old = tail
                tail = TailClient(model, digest, device.outputShape, version)
                answering.remove(SPLITTING)
            } else {
                old = client
                client = AskClient(model, device, requests)
                share = model.share?.let(::AskedShare)
                answering.remove(ESCALATING)
            }
        }
        old?.close()
    }

    /** Connect to no server any more: what plans send is answered here. May be called twice. */
    public fun disconnect() {
        before()
        close()
    }

    /**
     * Run the hybrid that the bundle was made for, with its other half at [server].
     *
     * @throws UsageError the bundle is no base of a hybrid.
     */
    public fun useHybrid(server: RemoteModel) {
        val plan = bundle.manifest.hybridPlan ?: throw UsageError("this bundle is no base of a hybrid")
        connect(server)
        use(decodePlan(plan.toByteArray()))
    }

    /** Tell [link] of every request for samples from now on; [answerMs]: what the server works on one. */
    internal fun tell(link: LinkEstimate?, answerMs: Double = 0.0) {
        told = link?.let { Told(it, answerMs) }
    }

    /**
     * What asks the connected server for nothing but the time it takes.
     *
     * @throws UsageError none is connected.
     */
    internal fun prober(link: LinkEstimate): LinkProbe =
        LinkProbe(model ?: throw UsageError("no server is connected"), link)

    /** The server was seen to answer: do not wait until it is asked again. */
    internal fun tryAgain() {
        client?.tryAgain()
    }

    private val requests = object : RequestListener {
        override fun answered(sizeBytes: Long, samples: Int, seconds: Double) {
            told?.apply { link.record(sizeBytes, seconds, samples * answerMs) }
        }

        override fun failed() {
            told?.link?.failed()
        }
    }

    /** Disconnect all servers. Idempotent. */
    internal fun close() {
        val old = synchronized(answering) { listOfNotNull(client, tail).also { client = null; tail = null } }
        old.forEach { it.close() }
    }

    /** Why a server that [plan] needs cannot be used now; null if all can, or it needs none. */
    internal fun whyNot(plan: Plan): String? {
        val ask = plan.hard as? Hard.Ask
        return plan.split?.let(::splitUnfit) ?: when (val sends = ask?.sends) {
            null -> null
            Sends.Input -> askingUnfit(ask.server)
            is Sends.Activations -> tailUnfit(ask.server, sends.position)
        }
    }

    /** A warning in the process's log if [plan] needs a server that cannot be used. */
    internal fun sayWhatIsMissing(plan: Plan) {
        whyNot(plan)?.let { LOG.warning("the plan runs on the device alone: $it") }
    }

    /**
     * Run [plan] on [tensor] [batch, *input]: logits [batch, classes] and the source of each.
     *
     * [raw]: the same samples before they were prepared, if known; [atSize]: prepares them at another size.
     */
    internal fun answer(
        plan: Plan,
        loaded: LoadedPlan,
        tensor: Tensor,
        raw: RawSamples?,
        atSize: AtSize? = null,
    ): Pair<Tensor, List<String>> {
        val (split, client, prior) = Triple(plan.split, tail, plan.prior)
        val outcome = when {
            split == null || splitUnfit(split) != null -> // past the split, or as its fallback says
                loaded.run(tensor, null, asks = plan.asksEarly && isReady(plan.hard), atSize = atSize)
            split.isWhole || client == null -> loaded.run(tensor) {
                askAll(split.server, tensor, raw)?.let { corrected(it, prior) }
            }
            else -> loaded.run(tensor) { features ->
                runSplit(client, split, features)?.let { corrected(it, prior) }
            }
        }
        return when (val policy = plan.hard) {
            Hard.AnswerLocally, is Hard.Cascade -> outcome.output to marks(plan, outcome)
            is Hard.Abstain -> abstained(plan, policy, outcome)
            is Hard.Ask -> asked(plan, policy, loaded, outcome, tensor, raw)
        }
    }

    /** Hard samples at the end stay without an answer, those that a server answered too. */
    private fun abstained(plan: Plan, policy: Hard.Abstain, outcome: Outcome): Pair<Tensor, List<String>> {
        val ends = setOf(AT_END, AT_SERVER, AFTER_FAILURE)
        val hard = hardAt(plan, outcome, ends) { hardSamples(policy.decider, it) }.toSet()
        return outcome.output to marks(plan, outcome).mapIndexed { at, mark -> if (at in hard) ABSTAINED else mark }
    }

    /**
     * The server answers the hard samples that reached the end here, and with them, in one call with one time-out, those
     * that ask from exits. If it does not, the subnet does: for the latter the rest of the path runs.
     */
    private fun asked(
        plan: Plan,
        policy: Hard.Ask,
        loaded: LoadedPlan,
        outcome: Outcome,
        tensor: Tensor,
        raw: RawSamples?,
    ): Pair<Tensor, List<String>> {
        val model = client?.model?.takeIf { policy.sends == Sends.Input } // whose pool and share count
        val keptShare = share?.takeIf { model != null }
        val early = outcome.asking.flatMap { it.samples }
        val atEnd = hardAt(plan, outcome, setOf(AT_END, AFTER_FAILURE)) {
            keptShare?.hard(policy.decider, it) ?: hardSamples(policy.decider, it)
        }
        val positions = (atEnd + early).sorted()
        if (positions.isEmpty()) return outcome.output to marks(plan, outcome)
        val reply = ask(policy, outcome, positions, tensor, raw)?.let { corrected(it, plan.prior) }?.let { found ->
            val pool = model?.pool?.takeIf { atEnd.isNotEmpty() } ?: return@let found
            val rows = atEnd.map { positions.binarySearch(it) } // not of exits: the pool was fitted to those at the end
            found.withRows(rows, pool.pooled(outcome.output.rows(atEnd), found.rows(rows)))
        }
        val whole = if (reply == null && early.isNotEmpty()) loaded.goOn(outcome) else outcome
        val (hard, mark) = positions.toSet() to if (reply == null) FALLBACK else SERVER
        val output = if (reply == null) whole.output else outcome.output.withRows(positions, reply)
        return output to marks(plan, whole).mapIndexed { at, before -> if (at in hard) mark else before }
    }

    /** Whether the server that the plan asks is connected, may be sent to, and is not left alone after failures. */
    private fun isReady(hard: Hard): Boolean {
        if (hard !is Hard.Ask) return false
        return when (val sends = hard.sends) {
            Sends.Input -> askingUnfit(hard.server) == null && client?.ready == true
            is Sends.Activations -> tailUnfit(hard.server, sends.position) == null && tail?.ready == true
        }
    }

    /** The samples that were answered at one of [ends] and are [hard]. */
    private fun hardAt(plan: Plan, outcome: Outcome, ends: Set<Int>, hard: (Tensor) -> List<Boolean>): List<Int> {
        val atEnd = outcome.answeredBy.indices.filter { outcome.answeredBy[it] - plan.exits.size in ends }
        if (atEnd.isEmpty()) return emptyList()
        val found = hard(outcome.output.rows(atEnd))
        return atEnd.filterIndexed { row, _ -> found[row] }
    }

    /** The server's logits for the samples at [positions]; null if there are none. */
    private fun ask(ask: Hard.Ask, outcome: Outcome, positions: List<Int>, tensor: Tensor, raw: RawSamples?): Tensor? {
        val sends = ask.sends
        if (sends is Sends.Activations) {
            val (client, kept) = tail to outcome.kept
            if (client == null || kept == null || tailUnfit(ask.server, sends.position) != null) return null
            return runTail(client, sends.position, ask.tail, kept.of(positions))
        }
        val client = client
        if (client == null || askingUnfit(ask.server) != null) return null
        val reply = client.answer(tensor.rows(positions), raw?.at(positions), ask.server.digest)
        return noted(ESCALATING, reply)
    }

    /** The logits of the server's model for the whole batch; null if there are none. */
    private fun askAll(server: RemoteRef, tensor: Tensor, raw: RawSamples?): Tensor? =
        client?.let { noted(ESCALATING, it.answer(tensor, raw, server.digest)) }

    private fun runSplit(client: TailClient, split: Split, features: List<Tensor>): Tensor? {
        val sent = Activations(digest, split.position, split.tail, features)
        return noted(SPLITTING, client.run(sent, split.bits, split.perChannel, split.compress))
    }

    private fun runTail(client: TailClient, position: Int, path: List<Edge>, features: List<Tensor>): Tensor? =
        noted(SPLITTING, client.run(Activations(digest, position, path, features)))

    private fun splitUnfit(split: Split): String? =
        if (split.isWhole) askingUnfit(split.server) else tailUnfit(split.server, split.position)

    private fun tailUnfit(server: RemoteRef, position: Int): String? = unfit(tail?.model, server, position)

    private fun askingUnfit(server: RemoteRef): String? = unfit(client?.model, server, position = 0)

    /** The reply's output; the log says when a server stops answering, and when it answers again. */
    private fun noted(event: String, reply: RemoteReply): Tensor? {
        val isAnswering = reply.failure == null
        val changed = synchronized(answering) { answering.put(event, isAnswering) != isAnswering }
        if (changed) {
            log?.write(
                event(event, "answering" to JsonPrimitive(isAnswering), "failure" to JsonPrimitive(reply.failure)),
            )
        }
        return reply.output
    }
}

/** Why the connected [model] cannot serve as [server] for what is sent from cut point [position]; null if it can. */
private fun unfit(model: RemoteModel?, server: RemoteRef, position: Int): String? {
    if (model == null) return "no server is connected that has $server"
    if (server.model.isNotEmpty() && server.model != model.model) {
        return "the plan was made for $server, connected is ${model.model}"
    }
    if (model.privacy.allows(position)) return null
    val sent = if (position == 0) "inputs" else "activations"
    return "the plan sends $sent to ${model.model}, which the privacy setting ${model.privacy} forbids"
}

private fun marks(plan: Plan, outcome: Outcome): List<String> {
    val names = plan.exits.map { "exit ${it.exit}" } + listOf(SUBNET, SERVER, FALLBACK, ABSTAINED, CASCADE)
    return outcome.answeredBy.map(names::get)
}
