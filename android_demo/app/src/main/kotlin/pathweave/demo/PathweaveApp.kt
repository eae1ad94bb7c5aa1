package pathweave.demo

import android.app.ActivityManager
import android.app.Application
import android.content.Context
import android.content.SharedPreferences
import android.os.Handler
import android.os.Looper
import android.os.PowerManager
import java.io.File
import pathweave.sdk.live.SpeedSignals
import pathweave.sdk.live.SystemSpeed
import pathweave.sdk.memory_pressure.TrimMemory
import pathweave.sdk.offload.JpegEncoder

/** Holds what outlives every screen, and passes on what Android says of memory. Decides nothing. */
class PathweaveApp : Application() {
    private val memory by lazy {
        val manager = getSystemService(Context.ACTIVITY_SERVICE) as ActivityManager
        TrimMemory { ActivityManager.MemoryInfo().also(manager::getMemoryInfo).run { availMem - threshold } }
    }

    /** The app without its screens; made when the first one is shown. */
    val model: AppModel by lazy {
        val main = Handler(Looper.getMainLooper())
        val device = Device(
            memory,
            BatteryPower(this),
            camera = { openCamera(this) },
            jpeg = JpegEncoder(::jpegOf),
            speed = speedSignals(this),
        )
        AppModel(bundlesOf(this), device, post = { main.post(it) }).also { it.reopen() }
    }

    override fun onCreate() {
        super.onCreate()
        UpdateJob.schedule(this)
        LogUploadJob.schedule(this)
    }

    override fun onTrimMemory(level: Int) {
        super.onTrimMemory(level)
        memory.onTrimMemory(level)
    }
}

/** The files that an app may read, the thermal status (from Android 10 on) and the battery saver. */
private fun speedSignals(context: Context): SpeedSignals {
    val power = context.getSystemService(Context.POWER_SERVICE) as PowerManager
    return SystemSpeed(thermalStatus = { thermalStatus(power) }, saving = { power.isPowerSaveMode })
}

/** By reflection, since the app is compiled against Android 8's framework, which lacks it; null there. */
private fun thermalStatus(power: PowerManager): Int? = try {
    PowerManager::class.java.getMethod("getCurrentThermalStatus").invoke(power) as Int
} catch (_: ReflectiveOperationException) {
    null
}

/** The bundles of this app and what it remembers of them, for screens and for jobs. */
fun bundlesOf(context: Context): Bundles {
    val preferences = context.getSharedPreferences("bundles", Context.MODE_PRIVATE)
    return Bundles(File(context.filesDir, "state"), PrivateSettings(preferences))
}

/** Settings in the app's private preferences: readable for this app alone, not encrypted beyond the device's storage. */
private class PrivateSettings(private val preferences: SharedPreferences) : Settings {
    override fun get(name: String): String? = preferences.getString(name, null)

    override fun change(changes: Map<String, String?>) {
        val editor = preferences.edit()
        for ((name, value) in changes) editor.putString(name, value)
        editor.apply()
    }
}
