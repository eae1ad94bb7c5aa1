package pathweave.demo

/** What the Android build makes of app/src/main/res, by hand: the app compiles without it. BuildFilesTest compares. */
internal class R {
    object string {
        const val app_name = 1
        const val address_hint = 2
        const val key_hint = 3
        const val token_hint = 4
        const val fetch = 5
        const val copy = 6
        const val pick = 7
        const val use_exits = 8
        const val no_bundle = 9
        const val opening = 10
        const val classifying = 11
        const val opened = 12
        const val answer = 13
        const val no_answer = 14
        const val no_image = 15
    }
}
