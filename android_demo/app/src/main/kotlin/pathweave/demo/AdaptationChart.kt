package pathweave.demo

import android.content.Context
import android.graphics.Canvas
import android.graphics.DashPathEffect
import android.graphics.Paint
import android.graphics.Path
import android.util.TypedValue
import android.view.View

private const val HEIGHT_DP = 220
private const val DOT_DP = 3f
private const val MARK_DP = 7f
private const val TICKS_DOWN = 4
private const val BEYOND = 0x18ffffff // how much of the colour shows where the limit is broken
private const val FAINT = 0x66ffffff

/** The judged plans by latency and accuracy, their front, the one in use, the full model, and the limit. */
class AdaptationChart(context: Context) : View(context) {
    private val palette = Palette.of(context)
    private val ink = Paint(Paint.ANTI_ALIAS_FLAG)
    private var picture: AdaptationPicture? = null
    private val texts = Paint(Paint.ANTI_ALIAS_FLAG).apply {
        textSize = TypedValue.applyDimension(TypedValue.COMPLEX_UNIT_SP, SMALL_SP, resources.displayMetrics)
        color = palette.quiet
    }
    private val highPx get() = texts.textSize
    private val gapPx = context.dp(4).toFloat()
    private val densityPx = resources.displayMetrics.density

    fun show(picture: AdaptationPicture?) {
        if (picture == this.picture) return
        this.picture = picture
        contentDescription = picture?.let(::described)
        setVisible(picture != null)
        invalidate()
    }

    private fun described(picture: AdaptationPicture) = listOfNotNull(
        context.words(
            R.string.chart_described, picture.plans.size, context.number(picture.chosen.latencyMs), percent(picture.chosen.accuracy),
        ),
        picture.limitMs?.let { context.words(R.string.chart_described_limit, context.number(it)) },
    ).joinToString(" ")

    override fun onMeasure(widthSpec: Int, heightSpec: Int) {
        val words = (LEGEND_ROWS + 3) * (highPx + gapPx)
        setMeasuredDimension(MeasureSpec.getSize(widthSpec), (context.dp(HEIGHT_DP - LOWER_DP) + words).toInt())
    }

    override fun onDraw(canvas: Canvas) {
        val shown = picture ?: return
        Plot(canvas, shown).draw()
    }

    /** One drawing. The axes run as everywhere, from left to right, also where texts do not. */
    private inner class Plot(private val canvas: Canvas, private val picture: AdaptationPicture) {
        private val accuracies = picture.accuracyAxis.ticks(TICKS_DOWN)
        private val names = accuracies.map { context.number(100 * it) }
        private val left = names.maxOf(texts::measureText) + 2 * gapPx
        private val right = width - 2 * gapPx
        private val top = highPx + 3 * gapPx
        private val bottom = height - (LEGEND_ROWS + 2) * (highPx + gapPx) - gapPx

        private fun x(ms: Double) = (left + (right - left) * picture.latencyAxis.share(ms)).toFloat()

        private fun y(accuracy: Double) = (bottom - (bottom - top) * picture.accuracyAxis.share(accuracy)).toFloat()

        fun draw() {
            axes()
            picture.limitMs?.let(::limit)
            plans()
            marks()
            legend()
        }

        private fun line(colour: Int, widthDp: Float) = ink.apply {
            reset()
            isAntiAlias = true
            color = colour
            style = Paint.Style.STROKE
            strokeWidth = widthDp * densityPx
        }

        private fun filled(colour: Int) = ink.apply {
            reset()
            isAntiAlias = true
            color = colour
        }

        private fun axes() {
            canvas.drawText(context.words(R.string.chart_accuracy), 0f, highPx, texts)
            for ((value, name) in accuracies.zip(names)) {
                canvas.drawLine(left, y(value), right, y(value), line(palette.line, 1f))
                canvas.drawText(name, left - gapPx - texts.measureText(name), y(value) + highPx / 3, texts)
            }
            val unit = context.words(R.string.chart_latency)
            val room = texts.measureText("0000") * 2
            for (value in picture.latencyAxis.ticks(maxOf(2, ((right - left) / room).toInt()))) {
                val name = context.number(value)
                val at = (x(value) - texts.measureText(name) / 2).coerceIn(left - gapPx, right - texts.measureText(name))
                canvas.drawText(name, at, bottom + gapPx + highPx, texts)
            }
            canvas.drawText(unit, right - texts.measureText(unit), bottom + 2 * (gapPx + highPx), texts)
            canvas.drawLine(left, bottom, right, bottom, line(palette.quiet, 1f))
        }

        private fun limit(ms: Double) {
            canvas.drawRect(x(ms), top, right, bottom, filled(palette.limit and BEYOND))
            val dash = line(palette.limit, 2f).apply { pathEffect = DashPathEffect(floatArrayOf(3 * gapPx, 2 * gapPx), 0f) }
            canvas.drawPath(Path().apply { moveTo(x(ms), top); lineTo(x(ms), bottom) }, dash)
            val name = context.words(R.string.chart_limit)
            val colour = texts.color
            texts.color = palette.limit
            val at = (x(ms) - texts.measureText(name) / 2).coerceIn(left, right - texts.measureText(name))
            canvas.drawText(name, at, top - gapPx, texts)
            texts.color = colour
        }

        private fun plans() {
            for (plan in picture.plans) {
                canvas.drawCircle(x(plan.latencyMs), y(plan.accuracy), DOT_DP * densityPx, filled(palette.quiet and FAINT))
            }
            val steps = Path()
            for ((number, plan) in picture.front.withIndex()) {
                val (at, high) = x(plan.latencyMs) to y(plan.accuracy)
                if (number == 0) steps.moveTo(at, high) else steps.lineTo(at, high)
            }
            canvas.drawPath(steps, line(palette.quiet, 2f))
            for (plan in picture.front) {
                canvas.drawCircle(x(plan.latencyMs), y(plan.accuracy), DOT_DP * densityPx, filled(palette.quiet))
            }
        }

        private fun marks() {
            picture.full?.let { full(x(it.latencyMs), y(it.accuracy)) }
            chosen(x(picture.chosen.latencyMs), y(picture.chosen.accuracy))
        }

        private fun full(x: Float, y: Float) {
            val half = MARK_DP * densityPx * 0.8f
            canvas.drawRect(x - half, y - half, x + half, y + half, filled(palette.card))
            canvas.drawRect(x - half, y - half, x + half, y + half, line(palette.text, 2f))
        }

        private fun chosen(x: Float, y: Float) {
            canvas.drawCircle(x, y, (MARK_DP + 2) * densityPx, filled(palette.card))
            canvas.drawCircle(x, y, MARK_DP * densityPx, filled(palette.accent))
        }

        /** Beginning where texts begin. */
        private fun legend() {
            val mirrored = layoutDirection == LAYOUT_DIRECTION_RTL
            val rows = listOf<Pair<Int, (Float, Float) -> Unit>>(
                R.string.chart_chosen to ::chosen,
                R.string.chart_full to ::full,
                R.string.chart_front to ::dot,
            )
            for ((number, row) in rows.withIndex()) {
                val low = height - (LEGEND_ROWS - 1 - number) * (highPx + gapPx) - gapPx
                val name = context.words(row.first)
                val (side, from) = (MARK_DP + 3) * densityPx to 2 * (MARK_DP + 3) * densityPx + gapPx
                row.second(if (mirrored) width - side else side, low - highPx / 3)
                canvas.drawText(name, if (mirrored) width - from - texts.measureText(name) else from, low, texts)
            }
        }

        private fun dot(x: Float, y: Float) = canvas.run {
            drawLine(x - MARK_DP * densityPx, y, x + MARK_DP * densityPx, y, line(palette.quiet, 2f))
            drawCircle(x, y, DOT_DP * densityPx, filled(palette.quiet))
        }
    }

    private companion object {
        const val LEGEND_ROWS = 3
        const val LOWER_DP = 40 // what the words take of the height at their usual size
    }
}
