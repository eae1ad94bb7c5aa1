/** Validation and normalisation of server addresses. Mirrors device_sdk/transports/port.py. */
package pathweave.sdk.transports

import java.net.URI
import java.net.URISyntaxException
import pathweave.sdk.UsageError

private const val BUNDLES = "/v1/bundles/"
private const val EXAMPLE = "an address looks like https://models.example.org/v1/bundles/NAME"
private const val SHOWN_CHARACTERS = 200
private const val MAX_PORT = 65_535
private val HOST_AND_PORT = Regex("(?:\\[[0-9a-fA-F:.]+]|[A-Za-z0-9._-]+)(?::([0-9]{0,5}))?") // names may have underscores
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
        throw notAnAddress(url)
    }
    val authority = parts.rawAuthority.orEmpty()
    if (parts.scheme?.lowercase() !in listOf("http", "https") || !PRINTABLE.matches(url)) throw notAnAddress(url)
    if ('@' in authority) {
        throw UsageError(
            "the address of ${authority.substringAfterLast('@')} contains a user name or a password",
            "give a token instead",
        )
    }
    val port = HOST_AND_PORT.matchEntire(authority)?.groupValues?.get(1) ?: throw notAnAddress(url)
    if ((port.toIntOrNull() ?: 0) > MAX_PORT) throw notAnAddress(url)
    if (parts.rawQuery != null || parts.rawFragment != null) {
        throw UsageError("'${shown(url)}' has a query or a fragment", EXAMPLE)
    }
    return url.trimEnd('/')
}

/**
 * The address of the server that has the bundle at [url], and the bundle's name there.
 *
 * @throws UsageError [url] does not end in /v1/bundles/NAME.
 */
public fun serverAndName(url: String): Pair<String, String> {
    val address = base(url)
    val (server, name) = address.substringBeforeLast(BUNDLES, "") to address.substringAfterLast(BUNDLES, "")
    if (server.isEmpty()) {
        throw UsageError("${shown(url)} is not the address of a bundle at a server", "it ends in /v1/bundles/NAME")
    }
    return server to name
}

private fun notAnAddress(url: String) = UsageError("'${shown(url)}' is not an address", EXAMPLE)

/** [url] for messages: without user name, password, query and fragment, which may be secrets. */
internal fun shown(url: String): String {
    val scheme = if (url.split("://").size == 2) url.substringBefore("://") + "://" else ""
    val rest = url.removePrefix(scheme)
    val place = rest.substringAfterLast('@').split('?', '#').first() // a password may have any of / ? #
    return (scheme + (if ('@' in rest) "…@" else "") + place).take(SHOWN_CHARACTERS)
}
