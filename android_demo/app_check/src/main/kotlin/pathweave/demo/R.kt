package pathweave.demo

/** What the Android build makes of app/src/main/res, by hand: the app compiles without it. BuildFilesTest compares. */
internal class R {
    object string {
        const val app_name = 1
        const val tab_bundle = 2
        const val tab_adapt = 3
        const val tab_live = 4
        const val tab_log = 5
        const val address_hint = 6
        const val key_hint = 7
        const val token_hint = 8
        const val kept_where = 9
        const val offline = 10
        const val fetch = 11
        const val open_stored = 12
        const val copy = 13
        const val no_bundle = 14
        const val opened = 15
        const val plan = 16
        const val profile = 17
        const val latency_limit = 18
        const val memory_limit = 19
        const val energy_limit = 20
        const val limit = 21
        const val no_limit = 22
        const val label_hint = 23
        const val add_pictures = 24
        const val add_folder = 25
        const val clear_pictures = 26
        const val pictures_counted = 27
        const val consider_exits = 28
        const val adapt = 29
        const val cancel = 30
        const val stage_profile = 31
        const val stage_search = 32
        const val stage_confirm = 33
        const val stage_judge = 34
        const val adapted = 35
        const val accuracies = 36
        const val with_exits = 37
        const val left_out = 38
        const val pick = 39
        const val use_exits = 40
        const val ask_server = 41
        const val live_camera = 42
        const val live_pictures = 43
        const val deadline = 44
        const val no_deadline = 45
        const val anytime = 46
        const val answer = 47
        const val no_answer = 48
        const val live_counts = 49
        const val live_asks = 50
        const val live_switches = 51
        const val watching = 52
        const val not_watching = 53
        const val camera_refused = 54
        const val camera_failed = 55
        const val show_log = 56
        const val send_log = 57
        const val log_sent = 58
        const val no_server = 59
        const val opening = 60
        const val copying = 61
        const val reading = 62
        const val classifying = 63
        const val adapting = 64
        const val planning = 65
        const val sending = 66
        const val kept = 67
        const val interrupted = 68
        const val cancelled = 69
        const val pictures_read = 70
        const val no_image = 71
    }
}
