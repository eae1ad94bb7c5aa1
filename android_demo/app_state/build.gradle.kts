plugins {
    alias(libs.plugins.kotlin.jvm)
    `java-library`
}

kotlin {
    compilerOptions {
        jvmTarget = org.jetbrains.kotlin.gradle.dsl.JvmTarget.fromTarget(libs.versions.jvmTarget.get())
        allWarningsAsErrors = true
    }
    sourceSets.test { kotlin.srcDir("src/fakes/kotlin") } // tests of the screens use them too
}

java {
    targetCompatibility = JavaVersion.toVersion(libs.versions.jvmTarget.get())
}

dependencies {
    api(project(":core"))
    compileOnly(libs.onnxruntime.jvm) // the app brings Android's, which has the same classes
    testImplementation(libs.onnxruntime.jvm)
    testImplementation(libs.junit)
    testRuntimeOnly(libs.junit.launcher)
}

tasks.test {
    useJUnitPlatform()
    systemProperty("pathweave.repository", rootDir.resolve("..").path)
}
