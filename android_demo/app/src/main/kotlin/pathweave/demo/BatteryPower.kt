package pathweave.demo

import android.content.Context
import android.content.Intent
import android.content.IntentFilter
import android.os.BatteryManager

/** What the battery gives now. Says nothing while it is charged, for then the current is the charger's. */
class BatteryPower(private val context: Context) : PowerMeter {
    private val battery = context.getSystemService(Context.BATTERY_SERVICE) as BatteryManager

    override fun watts(): Double? {
        if (battery.isCharging) return null
        val state = context.registerReceiver(null, IntentFilter(Intent.ACTION_BATTERY_CHANGED)) ?: return null
        val microamperes = battery.getLongProperty(BatteryManager.BATTERY_PROPERTY_CURRENT_NOW)
        return wattsOf(microamperes, state.getIntExtra(BatteryManager.EXTRA_VOLTAGE, 0))
    }
}
