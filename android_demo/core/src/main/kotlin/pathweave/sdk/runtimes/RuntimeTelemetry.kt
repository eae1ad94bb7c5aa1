/** Telemetry of ONNX Runtime: off. */
package pathweave.sdk.runtimes

import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtLoggingLevel

private const val VARIABLE = "ORT_DISABLE_TELEMETRY"

/**
 * The runtime's environment of this process, with its telemetry off.
 *
 * From 1.29 on it sends events unless the variable `ORT_DISABLE_TELEMETRY` is 1 when it is made; a call made later stops
 * all but the first. Android sets variables from within, a JVM does not: there who starts it sets the variable.
 */
internal fun quietEnvironment(): OrtEnvironment {
    setVariable(VARIABLE, "1")
    val environment = OrtEnvironment.getEnvironment(OrtLoggingLevel.ORT_LOGGING_LEVEL_ERROR)
    environment.setTelemetry(false)
    return environment
}

/** Sets a variable of this process where there is Android's `Os.setenv`; tells whether it did. */
internal fun setVariable(name: String, value: String, system: String = "android.system.Os"): Boolean = try {
    val set = Class.forName(system).getMethod("setenv", String::class.java, String::class.java, Boolean::class.java)
    set.invoke(null, name, value, true)
    true
} catch (_: ReflectiveOperationException) { // no Android, or one that refuses
    false
}
