package pathweave.sdk

import java.io.File
import java.nio.file.Path
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import pathweave.sdk.bundles.TrustedKey
import pathweave.sdk.data.Image
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.SampleSize

/** docs/guide/embed_in_an_android_app.md is right: its ten lines are those below, and they run. */
class GuideTest {
    private val source = File(Contract.repository, "android_demo/core/src/test/kotlin/pathweave/sdk/GuideTest.kt")
    private val guide = File(Contract.repository, "docs/guide/embed_in_an_android_app.md").readText()

    @Test
    fun `the ten lines run`(@TempDir temporary: Path) {
        val folder = Contract.copy(temporary).parentFile
        File(folder, "key.pub").writeText(Contract.vectors["signature"]["public_key"].text)
        val pixels = ByteArray(12) { it.toByte() }
        val printed = mutableListOf<Any>()
        fun println(line: Any) = printed.add(line)

        // the guide's lines
        AdaptiveModel.open(File(folder, "bundle"), trust = TrustedKey.read(File(folder, "key.pub"))).use { model ->
            val size = SampleSize(height = 2, width = 2) // of any size, where the manifest says how to resize
            val answer = model(Image(pixels, size, channels = 3)) // 8-bit, row by row, channels last
            println("${answer.labels[0]} (${answer.confidence[0]}) by ${answer.source[0]} in ${answer.latencyMs} ms")

            val exits = model.bundle.supernet.exitsAlong(model.plan.subnet).distinctBy { it.position }
            model.use(Plan(model.plan.subnet, exits.map { ExitChoice(it.id, threshold = 0.9) })) // answer early if sure
            println(model(Image(pixels, size, channels = 3)).source)
        }
        // end of the guide's lines

        assertEquals(2, printed.size)
        assertTrue(Regex("(blue|green|red) \\(0\\.\\d+\\) by subnet in .+ ms").matches("${printed[0]}"))
    }

    @Test
    fun `they are those of the guide`() {
        val here = source.readText().substringAfter("guide's lines\n").substringBefore("        // end")
        val there = guide.substringAfter("```kotlin\n").substringBefore("```")
        assertEquals(there, here.trimIndent() + "\n")
    }

    @Test
    fun `the version that it names is the one that is tested`() {
        val pom = File(Contract.repository, "android_demo/pom.xml").readText()
        val version = pom.substringAfter("<onnxruntime.version>").substringBefore("<")
        assertTrue("onnxruntime-android:$version\"" in guide)
    }
}
