/** Validation and normalisation of server addresses. Mirrors device_sdk/transports/addresses.py. */
package pathweave.sdk

import java.net.URI
import java.net.URISyntaxException

private const val EXAMPLE = "an address looks like https://models.example.org/v1/bundles/NAME"
private const val SHOWN_CHARACTERS = 200
private val PRINTABLE = Regex("[\\x21-\\x7e]+")

/**
 * [url] without a trailing slash, for appending paths.
 *
 * @throws UsageError not an absolute http or https URL, or one with a user name, a password, a query or a fragment.
 */
internal fun base(url: String): String {
    val parts = try {
        URI(url)
    } catch (_: URISyntaxException) {
        throw UsageError("'${shown(url)}' is not an address", EXAMPLE)
    }
    if (parts.scheme !in listOf("http", "https") || parts.host == null || !PRINTABLE.matches(url)) {
        throw UsageError("'${shown(url)}' is not an address", EXAMPLE)
    }
    if (parts.rawUserInfo != null) {
        throw UsageError("the address of ${parts.host} contains a user name or a password", "give a token instead")
    }
    if (parts.rawQuery != null || parts.rawFragment != null) {
        throw UsageError("'${shown(url)}' has a query or a fragment", EXAMPLE)
    }
    return url.trimEnd('/')
}

/** [url] for messages: without user name, password, query and fragment, which may be secrets. */
internal fun shown(url: String): String {
    val scheme = if (url.split("://").size == 2) url.substringBefore("://") + "://" else ""
    val rest = url.removePrefix(scheme)
    val place = rest.substringAfterLast('@').split('?', '#').first() // a password may have any of / ? #
    return (scheme + (if ('@' in rest) "…@" else "") + place).take(SHOWN_CHARACTERS)
}
