package pathweave.sdk

import java.io.File
import java.nio.file.Path
import org.junit.jupiter.api.AfterEach
import org.junit.jupiter.api.io.TempDir

/** A server that publishes version 1 of the reference bundle at [url], its files in [www], and a device's [state]. */
abstract class PublishedTest {
    @TempDir
    lateinit var folder: Path

    protected val www: File by lazy { File(folder.toFile(), "www").also { Published.write(it, 1) } }
    protected val server: FaultServer by lazy { FaultServer(www) }
    protected val url: String by lazy { "${server.url}/${Published.PATH}" }
    protected val state: File by lazy { File(folder.toFile(), "state") }

    @AfterEach
    fun stop() = server.close()
}
