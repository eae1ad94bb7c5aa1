#!/usr/bin/env bash
# Tests core/ and app_state/ and compiles app/ where a JDK and Maven are there; with the argument app, runs the app on the JVM instead,
# which needs aapt2 too. Else says what is missing, which is an error only with PATHWEAVE_REQUIRE_JVM=1 (CI).
set -euo pipefail
cd "$(dirname "$0")"
what=${1:-core}

. ./tools.sh

javac="${JAVA_HOME:+$JAVA_HOME/bin/}javac"
command -v "$javac" >/dev/null || missing "the Kotlin tests need a JDK, 17 or newer; there is no $javac"
major=$("$javac" -version 2>&1 | sed -n 's/^javac \([0-9]*\).*/\1/p')
[ "${major:-0}" -ge 17 ] || missing "the Kotlin tests need a JDK, 17 or newer; $javac is ${major:-no JDK}"
command -v mvn >/dev/null || missing "the Kotlin tests need Maven; there is no mvn"
mvn+=("-Dsurefire.rerunFailingTestsCount=${SUREFIRE_RERUNS:-0}")

# Prints how many tests of these modules passed.
passed() {
    local number again
    number=$(awk '/^Tests run:/ { n += $3 } END { print n }' ${@/%//target/surefire-reports/*.txt})
    again=$({ grep -ohE '<flaky(Failure|Error) ' ${@/%//target/surefire-reports/*.xml} || true; } | wc -l)
    echo "$number Kotlin tests passed$([ "$again" = 0 ] || echo ", $again of them at the second attempt")"
}

if [ "$what" = app ]; then
    command -v aapt2 >/dev/null || missing "running the app needs aapt2, which compiles its resources (Debian: apt-get install aapt)"
    [ -d app_screens/target ] || echo "Maven downloads about 500 MB the first time, most of it two Android platforms."
    rm -rf app_screens/target/surefire-reports
    "${mvn[@]}" --activate-profiles app-screens --projects core,app_state,app_screens -Dmaven.test.skip=true test
    echo "$(passed app_screens), by running the app; its screens are in android_demo/app_screens/target/screens"
else
    [ -d core/target ] || echo "Maven downloads about 300 MB the first time, a third of it the Android platform."
    rm -rf {core,app_state}/target/surefire-reports
    "${mvn[@]}" --activate-profiles app-check test
    echo "$(passed core app_state); the app compiles"
    if command -v zip >/dev/null; then ./shrunk.sh; else echo "not run on the core as R8 shrinks it: there is no zip"; fi
fi
