plugins {
    alias(libs.plugins.kotlin.jvm) apply false // also the version of the Kotlin that the Android plugin has built in
    alias(libs.plugins.android.application) apply false
}
