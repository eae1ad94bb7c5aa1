package pathweave.demo

import java.io.File
import java.util.concurrent.ConcurrentHashMap
import kotlin.concurrent.thread
import kotlin.io.path.createTempDirectory
import pathweave.sdk.Image
import pathweave.sdk.ImageSize
import pathweave.sdk.SplitMix64

/** The reference bundle of tests/contract: three classes, images of 2x2 pixels with three channels. */
object Reference {
    private val contract = File(System.getProperty("pathweave.repository"), "tests/contract")

    /** As it is: signed, and it takes no other images. */
    val signed = File(contract, "bundle")

    /** Unsigned, and resizing images of any size, as bundles for a camera do. */
    val folder: File by lazy {
        val copy = createTempDirectory("reference").toFile()
        Runtime.getRuntime().addShutdownHook(thread(start = false) { copy.deleteRecursively() })
        signed.copyRecursively(copy)
        File(copy, "manifest.sig").delete()
        val manifest = File(copy, "manifest.json")
        val resizing = manifest.readText().replaceFirst("\"resize\": null", "\"resize\": [2, 2]")
        check("\"resize\": [2, 2]" in resizing)
        copy.also { manifest.writeText(resizing) }
    }
    val key: String = Regex("-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----\\\\n")
        .find(File(contract, "vectors.json").readText())!!.value.replace("\\n", "\n")
    val size = ImageSize(2, 2)

    fun images(count: Int, seed: Long = 5): List<Image> {
        val random = SplitMix64(seed)
        return List(count) { Image(ByteArray(12) { random.next().toByte() }, size, 3) }
    }
}

/** Settings in memory; a second model on the same ones is the next start of the app. */
class KeptSettings : Settings {
    private val values = ConcurrentHashMap<String, String>()

    override fun get(name: String): String? = values[name]

    override fun change(changes: Map<String, String?>) = changes.forEach { (name, value) ->
        if (value == null) values.remove(name) else values[name] = value
    }
}

/** A camera that shows [images] as fast as they are taken. */
class FakeCamera(private val images: List<Image>) : Frames {
    @Volatile
    var closed = false
    private var next = 0

    override fun take(): Image? = if (closed) null else images[next++ % images.size]

    override fun close() {
        closed = true
    }
}
