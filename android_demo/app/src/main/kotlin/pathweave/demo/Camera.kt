package pathweave.demo

import android.Manifest
import android.annotation.SuppressLint
import android.content.Context
import android.content.pm.PackageManager
import android.graphics.ImageFormat
import android.hardware.camera2.CameraAccessException
import android.hardware.camera2.CameraCaptureSession
import android.hardware.camera2.CameraCharacteristics
import android.hardware.camera2.CameraDevice
import android.hardware.camera2.CameraManager
import android.media.ImageReader
import android.os.Handler
import android.os.HandlerThread
import android.util.Size
import android.view.Surface
import android.view.WindowManager
import pathweave.sdk.data.Image
import pathweave.sdk.supernet.SampleSize

private const val LEAST_SIDE = 240 // pixels; of the sizes that a camera has, the smallest that is not below
private const val BUFFERS = 2
private const val FULL_TURN = 360

/** The camera at the back, or any other; UnreadableException: it was refused, is in use, or there is none. */
fun openCamera(context: Context): Frames {
    if (context.checkSelfPermission(Manifest.permission.CAMERA) != PackageManager.PERMISSION_GRANTED) {
        throw UnreadableException(context.getString(R.string.camera_refused))
    }
    val failed = context.getString(R.string.camera_failed)
    return try {
        cameraFrames(context, failed)
    } catch (error: CameraAccessException) {
        throw UnreadableException(failed, error)
    } catch (error: SecurityException) {
        throw UnreadableException(context.getString(R.string.camera_refused), error)
    }
}

private fun cameraFrames(context: Context, failed: String): Frames {
    val manager = context.getSystemService(Context.CAMERA_SERVICE) as CameraManager
    val cameras = manager.cameraIdList.map { it to manager.getCameraCharacteristics(it) }
    val (id, camera) = cameras.find { (_, one) -> one.get(CameraCharacteristics.LENS_FACING) == BACK }
        ?: cameras.firstOrNull() ?: throw UnreadableException(failed)
    val sizes = camera.get(CameraCharacteristics.SCALER_STREAM_CONFIGURATION_MAP)
        ?.getOutputSizes(ImageFormat.YUV_420_888).orEmpty()
    val size = sizes.filter { minOf(it.width, it.height) >= LEAST_SIDE }.minByOrNull(::pixels)
        ?: sizes.maxByOrNull(::pixels) ?: throw UnreadableException(failed)
    val frames = CameraFrames(size, degrees(context, camera), failed)
    try {
        frames.open(manager, id)
    } catch (error: Throwable) {
        frames.close()
        throw error
    }
    return frames
}

private const val BACK = CameraCharacteristics.LENS_FACING_BACK

private fun pixels(size: Size): Int = size.width * size.height

/** By how much frames of this camera have to be turned clockwise, as the screen is held now. */
private fun degrees(context: Context, camera: CameraCharacteristics): Int {
    val windows = context.getSystemService(Context.WINDOW_SERVICE) as WindowManager
    @Suppress("DEPRECATION") // the replacement needs API 30
    val screen = when (windows.defaultDisplay.rotation) {
        Surface.ROTATION_90 -> 90
        Surface.ROTATION_180 -> 180
        Surface.ROTATION_270 -> 270
        else -> 0
    }
    val sensor = camera.get(CameraCharacteristics.SENSOR_ORIENTATION) ?: 0
    val back = camera.get(CameraCharacteristics.LENS_FACING) == BACK
    return Math.floorMod(if (back) sensor - screen else sensor + screen, FULL_TURN)
}

/** Frames of one camera, in a thread of its own. [failed]: what is said when the camera ends by itself. */
private class CameraFrames(size: Size, private val degrees: Int, private val failed: String) : Frames {
    private val latest = LatestFrame()
    private val thread = HandlerThread("camera").apply { start() }
    private val handler = Handler(thread.looper)
    private val reader = ImageReader.newInstance(size.width, size.height, ImageFormat.YUV_420_888, BUFFERS)
    private var camera: CameraDevice? = null // of the camera's thread, as the next
    private var closed = false

    @SuppressLint("MissingPermission") // openCamera asks; what was withdrawn since is a SecurityException
    fun open(manager: CameraManager, id: String) {
        reader.setOnImageAvailableListener({ put() }, handler)
        manager.openCamera(id, Opened(), handler)
    }

    override fun take(): Image? = latest.take()

    override fun close() {
        latest.close()
        handler.post {
            closed = true
            camera?.close()
            reader.close()
            thread.quitSafely()
        }
    }

    private fun fail() = latest.fail(UnreadableException(failed))

    private fun put() {
        if (closed) return
        val frame = reader.acquireLatestImage() ?: return
        frame.use {
            val (y, u, v) = it.planes.map { plane -> Plane(plane.buffer, plane.rowStride, plane.pixelStride) }
            latest.put(rgbOf(y, u, v, SampleSize(it.height, it.width), degrees))
        }
    }

    private inner class Opened : CameraDevice.StateCallback() {
        override fun onOpened(device: CameraDevice) {
            if (closed) return device.close()
            camera = device
            try {
                @Suppress("DEPRECATION") // the replacement needs API 28
                device.createCaptureSession(listOf(reader.surface), Configured(device), handler)
            } catch (_: CameraAccessException) {
                fail()
            }
        }

        override fun onDisconnected(device: CameraDevice) {
            device.close()
            fail()
        }

        override fun onError(device: CameraDevice, error: Int) {
            device.close()
            fail()
        }
    }

    private inner class Configured(private val device: CameraDevice) : CameraCaptureSession.StateCallback() {
        override fun onConfigured(session: CameraCaptureSession) {
            if (closed) return
            try {
                val request = device.createCaptureRequest(CameraDevice.TEMPLATE_PREVIEW)
                request.addTarget(reader.surface)
                session.setRepeatingRequest(request.build(), null, handler)
            } catch (_: CameraAccessException) {
                fail()
            } catch (_: IllegalStateException) { // the device was closed meanwhile
                fail()
            }
        }

        override fun onConfigureFailed(session: CameraCaptureSession) = fail()
    }
}
