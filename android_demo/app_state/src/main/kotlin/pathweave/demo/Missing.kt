/** What can be done now, and what is missing for the rest: why a control is greyed out. */
package pathweave.demo

/** What the app does when a control is used. */
enum class Action { OPEN, PROFILE, ADD_PICTURES, CLEAR_PICTURES, LIMIT, ADAPT, CLASSIFY, CAMERA, LIVE_PICTURES, EXITS, ASK, READ_LOG, SEND_LOG }

/** Why something cannot be done yet. [TURN]: something else runs, and the control is free again when it ends. */
enum class Missing { BUNDLE, TURN, PROFILE, PICTURES, LIMITS, EXITS, SERVER, ONLINE }

/** The first thing that [action] still needs; null: it can be done now. [positions]: of the sliders. */
fun AppState.missing(action: Action, positions: BudgetPositions = BudgetPositions()): Missing? {
    if (action == Action.OPEN) return Missing.TURN.takeIf { busy != null }
    if (opened == null) return Missing.BUNDLE
    val turn = Missing.TURN.takeIf { busy != null }
    return when (action) {
        Action.CAMERA -> null // goes on beside what else runs, as the next
        Action.LIVE_PICTURES -> noPictures
        Action.CLEAR_PICTURES -> turn ?: noPictures
        Action.LIMIT -> noProfile
        Action.ADAPT -> noProfile ?: noPictures ?: Missing.LIMITS.takeIf { positions == BudgetPositions() } ?: turn
        Action.EXITS -> Missing.EXITS.takeIf { opened.exits == 0 } ?: turn
        Action.ASK, Action.SEND_LOG -> noServer(opened) ?: turn
        else -> turn
    }
}

private val AppState.noProfile get() = Missing.PROFILE.takeIf { ranges == null }

private val AppState.noPictures get() = Missing.PICTURES.takeIf { pictures.count == 0 }

private fun AppState.noServer(opened: Opened) = when {
    !opened.fromServer -> Missing.SERVER
    offline -> Missing.ONLINE
    else -> null
}
