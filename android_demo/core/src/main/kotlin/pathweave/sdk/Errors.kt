/**
 * Every error that the SDK raises on purpose, with the names of Python's.
 *
 * The message says what happened in one line; [PathweaveError.hint] says what to do about it.
 */
package pathweave.sdk

/** Base of all errors raised on purpose. [hint] is one line of advice for a person, apart from the message. */
public sealed class PathweaveError(
    message: String,
    public val hint: String? = null,
    cause: Throwable? = null,
) : Exception(message, cause)

/** The caller asked for something that makes no sense. */
public class UsageError(message: String, hint: String? = null) : PathweaveError(message, hint)

/** A bundle cannot be used. */
public open class BundleError internal constructor(
    message: String,
    hint: String? = null,
    cause: Throwable? = null,
) : PathweaveError(message, hint, cause)

/** manifest.json is missing, unreadable or breaks the schema. */
public class ManifestError(message: String, cause: Throwable? = null) : BundleError(message, null, cause)

/** The bundle's format version is unknown to this version of Pathweave. */
public class UnsupportedFormatError(message: String, hint: String? = null) : BundleError(message, hint)

/** The bundle is unsigned, or not signed by the trusted key. */
public class SignatureError(message: String, hint: String? = null, cause: Throwable? = null) :
    BundleError(message, hint, cause)

/** A blob is missing, truncated or altered. */
public class BlobError(message: String, hint: String? = null, cause: Throwable? = null) :
    BundleError(message, hint, cause)

/** Fragments that do not make one model. */
public class CompositionError(message: String, cause: Throwable? = null) : BundleError(message, null, cause)

/** A block does not reproduce its golden outputs on this machine. */
public open class SelfTestError(message: String, hint: String? = null) : BundleError(message, hint)

/** The bundle is older than the one that this device already had. */
public class RollbackError(message: String, hint: String? = null) : BundleError(message, hint)

/** The bundle's release, or the newest key list, has expired: newer ones may be withheld. Nothing is installed. */
public open class ExpiredError(message: String, hint: String? = null) : BundleError(message, hint)

/** The release or the key list expired so long ago by this device's clock that the clock may be wrong. */
public class ClockError(message: String, hint: String? = null) : ExpiredError(message, hint)

/** The inference runtime refused a model or a run. */
public class RuntimeFailedError(message: String, cause: Throwable? = null, hint: String? = null) :
    PathweaveError(message, hint, cause)

/** A sample has the wrong shape, type or values. */
public class InputError(message: String, hint: String? = null) : PathweaveError(message, hint)

/** A budget that is not a budget: zero, negative, or nothing limited. */
public open class BudgetError(message: String, hint: String? = null) : PathweaveError(message, hint)

/**
 * No subnet fits. [nearestLatencyMs] and [nearestPeakBytes] are the predicted cost of the nearest feasible subnet,
 * [nearest] its block ids.
 */
public class InfeasibleBudgetError(
    message: String,
    public val nearest: List<String>,
    public val nearestLatencyMs: Double,
    public val nearestPeakBytes: Long,
    hint: String? = null,
) : BudgetError(message, hint)

/** No answer of the plan is sure to be there by the deadline. [leastMs]: the least deadline that works now. */
public class InfeasibleDeadlineError(message: String, public val leastMs: Double, hint: String? = null) :
    BudgetError(message, hint)

/** An anytime run has not reached its first exit, or was stopped before it did. */
public class NoAnswerYetError(message: String, hint: String? = null) : PathweaveError(message, hint)

/** There are no samples to work on. */
public class DataError(message: String, hint: String? = null) : PathweaveError(message, hint)

/** What was measured makes no sense: the clock stood still or ran backwards. */
public class MeasurementError(message: String, hint: String? = null) : PathweaveError(message, hint)

/** The model was closed. */
public class ClosedError(message: String) : PathweaveError(message)

/** Something could not be fetched from a server: no connection, or one that was cut. */
public open class TransferError internal constructor(
    message: String,
    hint: String? = null,
    cause: Throwable? = null,
) : PathweaveError(message, hint, cause)

/** The server was too slow. */
public open class DeadlineError(message: String, cause: Throwable? = null, hint: String? = null) :
    TransferError(message, hint, cause)

/** The server answered with an error; [status] is its HTTP status. */
public class RefusedError(message: String, public val status: Int, hint: String? = null) : TransferError(message, hint)

/** A message breaks the protocol: cut short, wrong shape or type, made for another bundle. */
public class ProtocolError(message: String, hint: String? = null, cause: Throwable? = null) :
    TransferError(message, hint, cause)

/** A file could not be written: the disk is full or the folder is read-only. */
public class StorageError(message: String, cause: Throwable? = null, hint: String? = null) :
    PathweaveError(message, hint, cause)
