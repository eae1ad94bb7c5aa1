/** What the app needs of the device that it runs on. */
package pathweave.demo

import pathweave.sdk.data.Image
import pathweave.sdk.live.SpeedSignals
import pathweave.sdk.live.SystemSpeed
import pathweave.sdk.memory_pressure.MemoryPressure
import pathweave.sdk.offload.JpegEncoder

/** A file or a folder that the person chose cannot be read, or the camera cannot be used. */
class UnreadableException(message: String, cause: Throwable? = null) : Exception(message, cause)

/** A picture that the person picked. [label]: what was typed, or the name of its folder. */
class PickedPicture(val label: String?, val read: () -> Image)

/** What of the device the app needs. */
class Device(
    /** Follows the memory, and Android's `onTrimMemory`; null: the memory is not watched. */
    val memory: MemoryPressure?,
    /** Reads the power; null where there is no meter. */
    val power: PowerMeter?,
    /** Opens the camera (UnreadableException: it was refused, or there is none). */
    val camera: () -> Frames,
    /** Encodes colour pictures that are sent to a server; null: their pixels are sent. */
    val jpeg: JpegEncoder? = null,
    /** Says why the device becomes slower: heat, a battery saver, other apps. */
    val speed: SpeedSignals = SystemSpeed(),
)
