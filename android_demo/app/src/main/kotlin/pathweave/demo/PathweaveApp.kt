package pathweave.demo

import android.app.ActivityManager
import android.app.Application
import android.content.Context
import android.content.SharedPreferences
import android.os.Handler
import android.os.Looper
import java.io.File
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
        val device = Device(memory, BatteryPower(this), camera = { openCamera(this) }, jpeg = JpegEncoder(::jpegOf))
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
