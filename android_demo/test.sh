#!/usr/bin/env bash
# Tests core/ and app_state/ and compiles app/ where a JDK and Maven are there; else says what is missing, which is an error only with
# PATHWEAVE_REQUIRE_JVM=1 (CI).
set -euo pipefail
cd "$(dirname "$0")"

missing() {
    if [ "${PATHWEAVE_REQUIRE_JVM:-}" = 1 ]; then
        echo "error: $1" >&2
        exit 1
    fi
    echo "skipped: $1"
    exit 0
}

javac="${JAVA_HOME:+$JAVA_HOME/bin/}javac"
command -v "$javac" >/dev/null || missing "the Kotlin tests need a JDK, 17 or newer; there is no $javac"
major=$("$javac" -version 2>&1 | sed -n 's/^javac \([0-9]*\).*/\1/p')
[ "${major:-0}" -ge 17 ] || missing "the Kotlin tests need a JDK, 17 or newer; $javac is ${major:-no JDK}"
command -v mvn >/dev/null || missing "the Kotlin tests need Maven; there is no mvn"

[ -d core/target ] || echo "Maven downloads about 300 MB the first time, a third of it the Android platform."
rm -rf {core,app_state}/target/surefire-reports
mvn --quiet --batch-mode -Dstyle.color=never "-Dsurefire.rerunFailingTestsCount=${SUREFIRE_RERUNS:-0}" \
    --activate-profiles app-check test
passed=$(awk '/^Tests run:/ { n += $3 } END { print n }' {core,app_state}/target/surefire-reports/*.txt)
again=$({ grep -ohE '<flaky(Failure|Error) ' {core,app_state}/target/surefire-reports/*.xml || true; } | wc -l)
echo "$passed Kotlin tests passed$([ "$again" = 0 ] || echo ", $again of them at the second attempt"); the app compiles"
