import java.io.File
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.bundles.TrustedKey
import pathweave.sdk.data.Image

fun main(arguments: Array<String>) {
    val (bundle, key) = arguments.map(::File)
    AdaptiveModel.open(bundle, trust = TrustedKey.read(key)).use { model ->
        val size = checkNotNull(model.imageSize) { "this model takes no images" }
        val channels = model.bundle.manifest.preprocessing.ofImages().channels
        val answer = model(Image(ByteArray(size.height * size.width * channels), size, channels))
        println("${answer.labels[0]} by ${answer.source[0]} in ${answer.latencyMs} ms")
    }
}
