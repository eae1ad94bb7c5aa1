/** What a model answers. */
package pathweave.sdk

/** [Answer.source] of a sample that no exit answered. */
public const val SUBNET: String = "subnet"

/**
 * The answer to a batch.
 *
 * [output]: logits [batch, classes]; [source]: who answered each sample: `exit <id>` or `subnet`; [latencyMs]: of the
 * whole call.
 */
public class Answer(
    public val output: Tensor,
    public val source: List<String>,
    public val latencyMs: Double,
    private val classNames: List<String>,
) {
    /** The highest softmax probability of each sample, [batch]. */
    public val confidence: List<Double> by lazy { confidence(output).toList() }

    /** The name of the most probable class of each sample. */
    public val labels: List<String> by lazy { argmax(output).map(classNames::get) }
}
