/** Subnets as JSON, as Python writes and reads them (docs/bundle_format.md, "Subnets and plans"). */
package pathweave.sdk

import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.buildJsonObject
import kotlinx.serialization.json.put

/** [subnet] as JSON in UTF-8, the same bytes as in Python. */
public fun encodeSubnet(subnet: Subnet): ByteArray {
    val edges = subnet.edges.map { edge ->
        val sides = listOfNotNull(edge.inputSize?.height, edge.inputSize?.width).map(::JsonPrimitive)
        buildJsonObject {
            put("block", edge.block)
            put("rendition", edge.rendition)
            put("input_size", JsonArray(sides))
        }
    }
    return JsonObject(mapOf("edges" to JsonArray(edges))).toString().toByteArray()
}

/**
 * The subnet that [data] holds. Unknown fields are ignored; whether a bundle has such a path, [Supernet.check] says.
 *
 * @throws UsageError not JSON, or not a subnet; says what is wrong and where.
 */
public fun decodeSubnet(data: ByteArray): Subnet = try {
    Subnet(decodeJson(data)["edges"].items().map(::edge))
} catch (error: JsonError) {
    throw UsageError("this is no subnet: ${error.message}")
}

private fun edge(place: JsonPlace) = Edge(
    block = place["block"].text(),
    rendition = place.optional("rendition")?.text() ?: FP32,
    inputSize = place.optional("input_size")?.takeIf { it.items().isNotEmpty() }?.sides(),
)
