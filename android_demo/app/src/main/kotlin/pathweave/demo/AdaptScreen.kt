package pathweave.demo

import android.app.Activity
import android.text.InputType
import android.view.View
import android.widget.ProgressBar
import pathweave.sdk.policies.AdaptationStage

private const val PROGRESS_STEPS = 1000

/** Pictures, budget, adaptation. [pickPictures], [pickFolder]: have the person choose. */
class AdaptScreen(
    private val activity: Activity,
    private val app: AppModel,
    pickPictures: () -> Unit,
    pickFolder: () -> Unit,
) : Screen {
    private val column = Column(activity)
    private val profile = column.button(R.string.profile) { app.profile() }
    private val latency = column.slider(R.string.latency_limit, { limit(R.string.latency_limit, it) { latencyMs } })
    private val memory = column.slider(R.string.memory_limit, { limit(R.string.memory_limit, it) { memoryMb } })
    private val energy = column.slider(R.string.energy_limit, { limit(R.string.energy_limit, it) { energyMj } })
    private val label = column.field(R.string.label_hint, InputType.TYPE_CLASS_TEXT)
    private val pictures = column.button(R.string.add_pictures) { pickPictures() }
    private val folder = column.button(R.string.add_folder) { pickFolder() }
    private val clear = column.button(R.string.clear_pictures) { app.clearPictures() }
    private val counted = column.text()
    private val exits = column.box(R.string.consider_exits)
    private val adapt = column.button(R.string.adapt) {
        app.adapt(BudgetPositions(latency.position, memory.position, energy.position), exits.isChecked)
    }
    private val cancel = column.button(R.string.cancel) { app.cancel() }
    private val stage = column.text()
    private val bar = column.add(ProgressBar(activity, null, android.R.attr.progressBarStyleHorizontal)).apply {
        max = PROGRESS_STEPS
    }
    private val found = column.text()

    /** The class that was typed for the pictures. */
    val typed: String? get() = label.trimmed()

    override val view: View get() = column.view

    private fun limit(name: Int, position: Int, range: BudgetRanges.() -> SliderRange?): String {
        val limit = app.state.value.ranges?.range()?.at(position)
        return if (limit == null) activity.getString(R.string.no_limit, activity.getString(name))
        else activity.getString(R.string.limit, activity.getString(name), limit)
    }

    override fun show(state: AppState) {
        val measures = state.busy == Busy.PROFILING || state.busy == Busy.ADAPTING
        listOf(profile, pictures, folder, clear).forEach { it.isEnabled = state.ready }
        adapt.isEnabled = state.ready && state.ranges != null && state.pictures.count > 0
        cancel.isEnabled = measures
        listOf(latency, memory, energy).forEach { it.say() }
        energy.setVisible(state.ranges?.energyMj != null)
        counted.text = activity.getString(R.string.pictures_counted, state.pictures.count, state.pictures.labelled)
        showProgress(state, measures)
        found.text = state.adapted?.let(::words).orEmpty()
    }

    private fun showProgress(state: AppState, measures: Boolean) {
        val progress = state.progress
        bar.visibility = if (measures) View.VISIBLE else View.INVISIBLE
        bar.progress = ((progress?.share ?: 0.0) * PROGRESS_STEPS).toInt()
        stage.text = when (progress?.stage) {
            AdaptationStage.PROFILE -> activity.getString(R.string.stage_profile)
            AdaptationStage.SEARCH -> activity.getString(R.string.stage_search, progress.note)
            AdaptationStage.CONFIRM -> activity.getString(R.string.stage_confirm)
            AdaptationStage.JUDGE -> activity.getString(R.string.stage_judge)
            null -> ""
        }
    }

    private fun words(adapted: Adapted): String = listOfNotNull(
        adapted.measuredMs?.let { activity.getString(R.string.adapted, it, adapted.fullMs ?: 0.0) },
        adapted.accuracy?.let {
            activity.getString(R.string.accuracies, percent(it), percent(adapted.fullAccuracy ?: 0.0))
        },
        if (adapted.withExits) activity.getString(R.string.with_exits) else null,
        if (adapted.leftOut > 0) activity.getString(R.string.left_out, adapted.leftOut) else null,
    ).joinToString("\n")
}
