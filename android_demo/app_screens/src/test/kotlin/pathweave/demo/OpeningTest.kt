package pathweave.demo

import android.widget.EditText
import org.junit.Assert.assertEquals
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.Robolectric
import org.robolectric.annotation.Config

@RunWith(AppRunner::class)
@Config(sdk = [26, 35], qualifiers = "w360dp-h640dp-xhdpi")
class OpeningTest {
    @Test
    fun `a signed bundle is opened from a server`() {
        giveMemory()
        val activity = Robolectric.buildActivity(MainActivity::class.java).setup().get()
        BundleServer().use { server ->
            val (address, _, key) = activity.views().filterIsInstance<EditText>()
            address.setText(server.url)
            key.setText(Reference.key)
            activity.press(R.string.fetch)
            waitFor("the bundle") { state.ready || state.notice != null }
            assertEquals("reference" to null, state.opened?.name to state.notice)
        }
    }
}
