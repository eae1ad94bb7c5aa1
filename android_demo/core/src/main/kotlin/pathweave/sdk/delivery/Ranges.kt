/**
 * Range requests: headers to resume a transfer, and the meaning of the response. Pure. Mirrors
 * device_sdk/delivery/blobs.py.
 */
package pathweave.sdk.delivery

private val CONTENT_RANGE = Regex("bytes (?:([0-9]{1,18})-([0-9]{1,18})|\\*)/(?:([0-9]{1,18})|\\*)")
private const val OK = 200
private const val PARTIAL_CONTENT = 206
internal const val RANGE_NOT_SATISFIABLE = 416

/** How to handle a response. */
internal enum class NextStep {
    /** Append the body. */
    APPEND,

    /** Discard the bytes received so far and store the body. */
    REPLACE,

    /** All bytes were received before. */
    COMPLETE,

    /** Discard the bytes received so far and request the whole blob. */
    AGAIN,
}

/**
 * Headers that request the bytes from [offset] on, on condition that the entity tag is still [etag].
 *
 * Without an etag the range is unconditional; the digest check detects a mismatch.
 */
internal fun requestHeaders(offset: Long, etag: String?): Map<String, String> = buildMap {
    if (offset == 0L) return@buildMap
    put("Range", "bytes=$offset-")
    if (etag != null) put("If-Range", etag)
}

/** [etag], if it is a strong one, else null. */
internal fun strongEtag(etag: String?): String? =
    etag?.takeIf { it.length > 2 && it.startsWith('"') && it.endsWith('"') }

/** How to handle the response to a request from [offset] on, whose status is 200, 206 or 416. */
internal fun nextStep(status: Int, contentRange: String?, offset: Long): NextStep {
    if (status == OK) return if (offset > 0) NextStep.REPLACE else NextStep.APPEND
    val (start, _, total) = CONTENT_RANGE.matchEntire(contentRange.orEmpty().trim())?.destructured
        ?: return NextStep.AGAIN
    return when {
        status == PARTIAL_CONTENT && start.toLongOrNull() == offset -> NextStep.APPEND
        status == RANGE_NOT_SATISFIABLE && start.isEmpty() && offset > 0 && total.toLongOrNull() == offset ->
            NextStep.COMPLETE
        else -> NextStep.AGAIN
    }
}
