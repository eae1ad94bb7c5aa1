plugins {
    alias(libs.plugins.android.application)
}

android {
    namespace = "pathweave.demo"
    compileSdk = libs.versions.compileSdk.get().toInt()

    defaultConfig {
        applicationId = "pathweave.demo"
        minSdk = libs.versions.minSdk.get().toInt()
        targetSdk = libs.versions.compileSdk.get().toInt()
        versionCode = 1
        versionName = "0.1.0"
    }

    buildTypes {
        release {
            isMinifyEnabled = true // of Bouncy Castle, a few classes are used
            proguardFiles(getDefaultProguardFile("proguard-android-optimize.txt")) // the core's jar has its own
        }
    }

    compileOptions {
        sourceCompatibility = JavaVersion.toVersion(libs.versions.jvmTarget.get())
        targetCompatibility = JavaVersion.toVersion(libs.versions.jvmTarget.get())
    }

    packaging {
        resources.excludes += "META-INF/versions/**" // class files for later Javas, which Android does not read
    }
}

dependencies {
    implementation(project(":app_state"))
    implementation(libs.onnxruntime.android)
}
