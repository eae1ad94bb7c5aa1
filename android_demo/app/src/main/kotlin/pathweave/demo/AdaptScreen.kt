package pathweave.demo

import android.app.Activity
import android.graphics.Rect
import android.graphics.Typeface
import android.text.InputType
import android.view.View

private const val RESULT_SP = 28f

/** Pictures, limits, adaptation. [pickPictures], [pickFolder]: have the person choose. */
class AdaptScreen(
    private val activity: Activity,
    private val app: AppModel,
    pickPictures: () -> Unit,
    pickFolder: () -> Unit,
) : Screen {
    private val column = Column(activity)
    private val result = Result(activity)
    private val measured = Column(activity)
    private val ranges = measured.help()
    private val profile = measured.button(R.string.profile) { app.profile() }
    private val given = Column(activity)
    private val counted = given.help()
    private val label = given.field(R.string.label, R.string.label_hint, InputType.TYPE_CLASS_TEXT)
    private val pictures = given.button(R.string.add_pictures) { pickPictures() }
    private val folder = given.button(R.string.add_folder) { pickFolder() }

    init {
        given.help(R.string.folder_help)
    }

    private val clear = given.button(R.string.clear_pictures) { app.clearPictures() }
    private val limits = Column(activity)
    private val latency = limits.slider(R.string.latency_no_limit, latencyWords()) { show(app.state.value) }
    private val memory = limits.slider(R.string.memory_no_limit, memoryWords()) { show(app.state.value) }
    private val energy = limits.slider(R.string.energy_no_limit, energyWords()) { show(app.state.value) }
    private val exits = limits.switch(R.string.consider_exits)
    private val adapt = limits.button(R.string.adapt, main = true) { app.adapt(positions, exits.view.isChecked) }
    private val positions get() = BudgetPositions(latency.position, memory.position, energy.position)
    private var shown: Adapted? = null
    private var begun = false // what was there from the beginning does not move the screen
    private val resultCard = column.card(R.string.result_title) { add(result.view) }

    init {
        column.card(R.string.profile_title) { add(measured.view) }
        column.card(R.string.pictures_title) { add(given.view) }
        column.card(R.string.limits_title) { add(limits.view) }
    }

    /** The class that was typed for the pictures. */
    val typed: String? get() = label.trimmed()

    override val view: View get() = column.view

    private fun latencyWords() = limit(R.string.latency_limit, R.string.latency_no_limit) { latencyMs }

    private fun memoryWords() = limit(R.string.memory_limit, R.string.memory_no_limit) { memoryMb }

    private fun energyWords() = limit(R.string.energy_limit, R.string.energy_no_limit) { energyMj }

    private fun limit(some: Int, none: Int, range: BudgetRanges.() -> SliderRange?): (Int) -> String = { position ->
        val most = app.state.value.ranges?.range()?.at(position)
        if (most == null) activity.words(none) else activity.words(some, activity.number(most))
    }

    override fun show(state: AppState) {
        profile.need(state.missing(Action.PROFILE))
        ranges.say(
            state.ranges?.let { activity.words(R.string.profiled, activity.number(it.fullMs)) }
                ?: activity.words(R.string.not_profiled),
        )
        listOf(pictures, folder).forEach { it.need(state.missing(Action.ADD_PICTURES), said = false) }
        clear.need(state.missing(Action.CLEAR_PICTURES), said = false)
        clear.view.setVisible(state.pictures.count > 0)
        counted.say(activity.words(R.string.pictures_counted, state.pictures.count, state.pictures.labelled))
        for (slider in listOf(latency, memory, energy)) {
            slider.setEnabled(state.missing(Action.LIMIT) == null)
            slider.say()
        }
        energy.setVisible(state.ranges?.energyMj != null)
        exits.need(state.missing(Action.EXITS), said = state.opened != null)
        adapt.need(state.missing(Action.ADAPT, positions))
        showResult(state.adapted)
        begun = true
    }

    /** A new result comes into view, above what led to it. */
    private fun showResult(adapted: Adapted?) {
        resultCard.setVisible(adapted != null)
        if (adapted == null || adapted == shown) return
        shown = adapted
        result.show(adapted)
        if (begun) resultCard.post { resultCard.requestRectangleOnScreen(Rect(0, 0, resultCard.width, resultCard.height)) }
    }
}

/** What an adaptation found, in words and as a chart. */
private class Result(private val activity: Activity) {
    private val column = Column(activity)
    private val found = column.words(RESULT_SP).apply { typeface = Typeface.create("sans-serif-medium", Typeface.NORMAL) }
    private val rest = column.words()
    private val chart = column.add(AdaptationChart(activity))
    val view: View get() = column.view

    fun show(adapted: Adapted) {
        found.setVisible(adapted.measuredMs != null)
        found.say(adapted.measuredMs?.let { activity.words(R.string.adapted, activity.number(it)) }.orEmpty())
        rest.say(words(adapted))
        chart.show(adapted.picture)
    }

    private fun words(adapted: Adapted): String = listOfNotNull(
        adapted.fullMs?.let { fullMs -> beside(adapted.limitMs, activity.number(fullMs)) },
        adapted.accuracy?.let { activity.words(R.string.accuracies, percent(it), percent(adapted.fullAccuracy ?: 0.0)) },
        if (adapted.withExits) activity.words(R.string.with_exits) else null,
        if (adapted.leftOut > 0) activity.words(R.string.left_out, adapted.leftOut) else null,
    ).joinToString("\n")

    private fun beside(limitMs: Double?, full: String) =
        if (limitMs == null) activity.words(R.string.adapted_no_limit, full)
        else activity.words(R.string.adapted_limit, activity.number(limitMs), full)
}
