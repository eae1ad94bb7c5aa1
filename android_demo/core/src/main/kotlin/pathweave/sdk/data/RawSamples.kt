/** Samples before they were prepared, as they can travel to a server. */
package pathweave.sdk.data

import pathweave.sdk.data.kinds.TextInputs

/** Images or texts, in one list. */
internal sealed interface RawSamples {
    val count: Int

    /** Those at [positions], in that order. */
    fun at(positions: List<Int>): RawSamples
}

internal class RawImages(val images: List<Image>) : RawSamples {
    override val count: Int get() = images.size
    override fun at(positions: List<Int>): RawImages = RawImages(images.slice(positions))
}

internal class RawTexts(val texts: List<String>) : RawSamples {
    override val count: Int get() = texts.size
    override fun at(positions: List<Int>): RawTexts = RawTexts(texts.slice(positions))
}

/** What these samples were before; null where that cannot travel, or is not known. */
internal fun rawOf(inputs: Inputs): RawSamples? = when (inputs) {
    is RawInputs -> RawImages(inputs.images)
    is TextInputs -> RawTexts(inputs.texts)
    else -> null
}
