package pathweave.demo

import android.content.Context
import android.graphics.Canvas
import android.graphics.Paint
import android.graphics.Typeface
import android.view.Gravity
import android.view.View
import android.view.ViewGroup
import android.view.accessibility.AccessibilityNodeInfo
import android.widget.Button
import android.widget.TextView

private const val LINE_DP = 3
private const val SIDE_DP = 8

/** The app's screens by name. In one row where every name has room, else in rows of two. */
class TabRow(context: Context, names: List<Int>, private val select: (Int) -> Unit) : ViewGroup(context) {
    private val tabs = names.mapIndexed(::tab).onEach(::addView)
    private var columns = tabs.size

    private fun tab(number: Int, name: Int) = Tab(context).apply {
        id = name
        text = context.words(name)
        setOnClickListener { select(number) }
    }

    /** Mark this one, and no other. */
    fun mark(selected: Int) {
        for ((number, tab) in tabs.withIndex()) tab.mark(number == selected)
    }

    override fun onMeasure(widthSpec: Int, heightSpec: Int) {
        val width = MeasureSpec.getSize(widthSpec)
        val any = MeasureSpec.makeMeasureSpec(0, MeasureSpec.UNSPECIFIED)
        for (tab in tabs) tab.measure(any, any)
        columns = if (tabs.all { it.measuredWidth <= width / tabs.size }) tabs.size else 2
        val each = MeasureSpec.makeMeasureSpec(width / columns, MeasureSpec.EXACTLY)
        for (tab in tabs) tab.measure(each, any)
        setMeasuredDimension(width, rows() * tabs.maxOf { it.measuredHeight })
    }

    private fun rows() = (tabs.size + columns - 1) / columns

    override fun onLayout(changed: Boolean, left: Int, top: Int, right: Int, bottom: Int) {
        val (each, high) = (right - left) / columns to tabs.maxOf { it.measuredHeight }
        for ((number, tab) in tabs.withIndex()) {
            val at = (number % columns).let { if (layoutDirection == View.LAYOUT_DIRECTION_RTL) columns - 1 - it else it }
            val row = number / columns
            tab.layout(at * each, row * high, (at + 1) * each, (row + 1) * high)
        }
    }
}

/** One name; the marked one is coloured, bold and underlined, and TalkBack says that it is selected. */
private class Tab(context: Context) : TextView(context) {
    private val palette = Palette.of(context)
    private val line = Paint().apply { color = palette.accent }

    init {
        textSize = TEXT_SP
        gravity = Gravity.CENTER
        minHeight = context.dp(TOUCH_DP)
        isClickable = true
        isFocusable = true
        maxLines = 1
        setPadding(context.dp(SIDE_DP), 0, context.dp(SIDE_DP), 0)
        background = context.touched(context.rounded(palette.background, SIDE_DP), SIDE_DP)
        mark(false)
    }

    fun mark(selected: Boolean) {
        isSelected = selected
        setTextColor(if (selected) palette.accent else palette.quiet)
        typeface = if (selected) Typeface.DEFAULT_BOLD else Typeface.DEFAULT
    }

    override fun onDraw(canvas: Canvas) {
        super.onDraw(canvas)
        val (side, high) = context.dp(SIDE_DP).toFloat() to context.dp(LINE_DP)
        if (isSelected) canvas.drawRect(side, (height - high).toFloat(), width - side, height.toFloat(), line)
    }

    override fun onInitializeAccessibilityNodeInfo(info: AccessibilityNodeInfo) {
        super.onInitializeAccessibilityNodeInfo(info)
        info.className = Button::class.java.name // TalkBack names the role
    }
}
