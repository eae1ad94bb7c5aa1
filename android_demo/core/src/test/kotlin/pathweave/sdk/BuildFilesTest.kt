package pathweave.sdk

import java.io.File
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test

/** Maven builds here, Gradle in Android Studio: both have to mean the same. */
class BuildFilesTest {
    private val demo = File(Contract.repository, "android_demo")

    @Test
    fun `Maven and Gradle use the same versions`() {
        val gradle = found(Regex("^(\\w+) = \"([\\w.-]+)\"", RegexOption.MULTILINE), "gradle/libs.versions.toml")
        val maven = found(Regex("<([\\w.]+)>([\\w.-]+)</"), "pom.xml")
        val shared = mapOf(
            "kotlin" to "kotlin.version",
            "serialization" to "serialization.version",
            "coroutines" to "coroutines.version",
            "onnxruntime" to "onnxruntime.version",
            "bouncycastle" to "bouncycastle.version",
            "junit" to "junit.version",
            "jvmTarget" to "jvm.target",
        )
        assertEquals(shared.keys, gradle.keys - setOf("agp", "minSdk", "compileSdk"))
        for ((alias, property) in shared) assertEquals(gradle.getValue(alias), maven.getValue(property), alias)
    }

    @Test
    fun `the app is compiled against the oldest Android that it says it runs on`() {
        val minSdk = found(Regex("(minSdk) = \"(\\d+)\""), "gradle/libs.versions.toml")["minSdk"]
        val maven = found(Regex("<([\\w.]+)>([\\w.-]+)</"), "pom.xml")
        assertEquals("android-api-level-$minSdk", maven["android.signature"])
        val release = maven.getValue("android.signature.version").substringBefore("_")
        assertEquals(release, maven.getValue("android.platform.version").substringBefore("_"))
    }

    @Test
    fun `the resources that the check compiles with are those of the app`() {
        val real = found(Regex("<string name=\"(\\w+)\">([^<]*)<"), "app/src/main/res/values/strings.xml").keys
        val byHand = found(Regex("const val (\\w+) = (\\d+)"), "app_check/src/main/kotlin/pathweave/demo/R.kt").keys
        assertEquals(real, byHand)
    }

    @Test
    fun `every resource that the app names is there, and each is used`() {
        val named = File(demo, "app/src/main/kotlin").walk().filter { it.extension == "kt" }
            .flatMap { file -> Regex("R\\.string\\.(\\w+)").findAll(file.readText()).map { it.groupValues[1] } }.toSet()
        val there = found(Regex("<string name=\"(\\w+)\">([^<]*)<"), "app/src/main/res/values/strings.xml").keys
        assertEquals(there - "app_name", named) // the manifest names that one
    }

    @Test
    fun `Maven and Gradle build the same modules from the same dependencies`() {
        val modules = listOf("core", "app_state")
        val settings = File(demo, "settings.gradle.kts").readText()
        assertEquals(modules, Regex("<module>(\\w+)</module>").findAll(File(demo, "pom.xml").readText().substringBefore("<profiles>"))
            .map { it.groupValues[1] }.toList())
        assertTrue(modules.all { "\":$it\"" in settings }, settings)
        val names = found(Regex("^([\\w-]+) = \\{ module = \"[\\w.]+:([\\w-]+)\"", RegexOption.MULTILINE), "gradle/libs.versions.toml")
        for (module in modules) {
            val gradle = Regex("(?:api|implementation|compileOnly)\\(libs\\.([\\w.]+)\\)")
                .findAll(File(demo, "$module/build.gradle.kts").readText())
                .map { names.getValue(it.groupValues[1].replace('.', '-')) }.filter { it != "junit-jupiter" }
            val maven = Regex("<artifactId>([\\w-]+)</artifactId>\\s+(?:<version>[^<]*</version>\\s+)?(?:<optional>true</optional>[^\\n]*\\s+)?</dependency>")
                .findAll(File(demo, "$module/pom.xml").readText()).map { it.groupValues[1].removeSuffix("-jvm") }
            val given = setOf("kotlin-stdlib", "pathweave-core") // Gradle's plugin brings the one, the project is the other
            assertEquals(maven.toSet() - given, gradle.toSet(), module)
        }
    }

    private fun found(pattern: Regex, path: String): Map<String, String> =
        pattern.findAll(File(demo, path).readText()).associate { it.groupValues[1] to it.groupValues[2] }
}
