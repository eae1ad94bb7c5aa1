package pathweave.sdk

import java.io.File
import java.nio.file.Path
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.double
import kotlinx.serialization.json.int
import kotlinx.serialization.json.jsonArray
import kotlinx.serialization.json.jsonObject
import kotlinx.serialization.json.jsonPrimitive
import org.junit.jupiter.api.Assertions.fail
import org.junit.jupiter.api.assertThrows
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.bundles.TrustedKey
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.FP32
import pathweave.sdk.supernet.SampleSize
import pathweave.sdk.supernet.Subnet

/** The golden vectors of tests/contract, and how they are written. */
object Contract {
    val repository = File(System.getProperty("pathweave.repository"))
    val vectors: JsonElement = Json.parseToJsonElement(File(repository, "tests/contract/vectors.json").readText())
    val key: TrustedKey = TrustedKey.fromPem(vectors["signature"]["public_key"].text)
    val referenceFolder = File(repository, "tests/contract/" + vectors["bundle"]["folder"].text)

    fun reference(): Bundle = Bundle.open(referenceFolder, key)

    /** A copy of the reference bundle that a test may alter. */
    fun copy(into: Path): File = File(into.toFile(), "bundle").also { referenceFolder.copyRecursively(it) }
}

operator fun JsonElement?.get(name: String): JsonElement = this!!.jsonObject.getValue(name)

val JsonElement.text: String get() = jsonPrimitive.content
val JsonElement.int: Int get() = jsonPrimitive.int
val JsonElement.double: Double get() = jsonPrimitive.double
val JsonElement.items: JsonArray get() = jsonArray
val JsonElement.texts: List<String> get() = items.map { it.text }
val JsonElement.seed: Long get() = text.toULong().toLong()
val JsonElement.bytes: ByteArray get() = text.chunked(2).map { it.toInt(16).toByte() }.toByteArray()

/** The bits of float32 values. */
val JsonElement.floats: List<Float> get() = items.map { Float.fromBits(it.text.toUInt(16).toInt()) }

/** A subnet as text: ids, `@rendition` where it is not fp32, `~home` where it names one, `4x6: ` ahead for a size. */
fun subnetOf(text: String): Subnet {
    val size = text.substringBefore(": ", "").takeIf { it.isNotEmpty() }?.split("x")?.map { it.toInt() }
    val words = text.substringAfter(": ").split(" ")
    val edges = words.map { word ->
        val name = word.substringBefore('~')
        Edge(name.substringBefore('@'), name.substringAfter('@', FP32), home = word.substringAfter('~', ""))
    }
    return Subnet(edges).at(size?.let { (height, width) -> SampleSize(height, width) })
}

val JsonElement.size: SampleSize get() = items.let { (height, width) -> SampleSize(height.int, width.int) }

fun subnetsOf(subnets: List<Subnet>): List<String> = subnets.map { it.toString() }

/** [work] has to throw just this kind of error. */
inline fun <reified E : PathweaveError> assertRefused(work: () -> Unit): E {
    val error = assertThrows<PathweaveError> { work() }
    return error as? E ?: fail("expected ${E::class.simpleName}, got ${error::class.simpleName}: ${error.message}")
}
