#!/usr/bin/env bash
# Builds a signed debug APK without Android's SDK: R8 from Maven Central, aapt2, zipalign and apksigner from Debian. It says the size of each part.
# ONNX Runtime for Android is not on Maven Central: this APK lacks it, so it installs but opens no bundle. Gradle's build has it.
#
#   apk.sh [OUT]    OUT: by default app_screens/target/pathweave-debug.apk
#
# What is missing is said, which is an error only with PATHWEAVE_REQUIRE_JVM=1 (CI).
set -euo pipefail
out=$(realpath -m "${1:-$(dirname "$0")/app_screens/target/pathweave-debug.apk}")
cd "$(dirname "$0")"
. ./tools.sh
min_sdk=26

for tool in java keytool mvn zip unzip; do
    command -v "$tool" >/dev/null || missing "building the APK needs $tool"
done
for tool in aapt2:aapt zipalign:zipalign apksigner:apksigner; do
    command -v "${tool%:*}" >/dev/null || missing "building the APK needs ${tool%:*} (Debian: apt-get install ${tool#*:})"
done
export MAVEN_OPTS="-XX:TieredStopAtLevel=1 ${MAVEN_OPTS:-}" # the second compiler does not pay off
made=$PWD/app_screens/target/apk
rm -rf "$made" && mkdir -p "$made/dex"

# 1. Classes of core, app_state and app, with the R of the app's resources.
compiled=app_screens/target/classes/pathweave/demo/MainActivity.class # the last of them, perhaps made by make test-app
if [ ! -f $compiled ] || [ -n "$(find pom.xml */pom.xml */src/main app_screens/resources.sh -newer $compiled -print -quit)" ]; then
    "${mvn[@]}" --activate-profiles app-screens --projects core,app_state,app_screens -Dmaven.test.skip=true process-classes
fi
"${mvn[@]}" --activate-profiles app-check --projects app_check dependency:build-classpath "-Dmdep.outputFile=$made/jars"

# 2. What the program reaches becomes classes.dex. ONNX Runtime's classes are only compiled against.
inputs=() libraries=()
for module in core app_state app_screens; do
    (cd $module/target/classes && zip -q -r "$made/$module.jar" . -i '*.class' 'META-INF/proguard/*')
    inputs+=("$made/$module.jar")
done
while read -r jar; do
    case $jar in
    "") ;;
    */android-all-*) libraries+=(--lib "$jar") ;;
    */onnxruntime-*) libraries+=(--classpath "$jar") ;;
    *) inputs+=("$jar") ;;
    esac
done < <(tr : '\n' <"$made/jars" && echo)
rules=$made/rules.pro
for jar in "${inputs[@]}"; do unzip -q -p "$jar" 'META-INF/proguard/*' 2>/dev/null || true; done >"$rules"  # Android's build reads them there
r8 "$made" --min-api $min_sdk "${libraries[@]}" --pg-conf "$rules" --pg-conf app/apk.pro --pg-conf app_screens/target/resources/kept.pro \
    --output "$made/dex" "${inputs[@]}"

# 3. Resources and code in one archive, aligned and signed with a key of its own.
cp app_screens/target/resources/app.apk "$made/unaligned.apk"
zip -q -j "$made/unaligned.apk" "$made"/dex/*.dex
zipalign -f 4 "$made/unaligned.apk" "$made/aligned.apk"
key=$PWD/app_screens/target/debug.keystore
[ -f "$key" ] || keytool -genkeypair -keystore "$key" -storepass android -keypass android -alias debug -dname "CN=Android Debug" -keyalg RSA \
    -keysize 2048 -validity 10000 >/dev/null 2>&1
mkdir -p "$(dirname "$out")"
apksigner sign --ks "$key" --ks-pass pass:android --key-pass pass:android --min-sdk-version $min_sdk --out "$made/signed.apk" "$made/aligned.apk"
apksigner verify --min-sdk-version $min_sdk "$made/signed.apk"
mv "$made/signed.apk" "$out"

# 4. Its size by part, as stored.
unzip -v "$out" | awk '
    $1 ~ /^[0-9]+$/ && NF >= 8 {
        part = $8 ~ /\.dex$/ ? "code" : $8 ~ /^res\// || $8 == "resources.arsc" ? "resources" : "manifest and signature"
        bytes[part] += $3
    }
    END { for (part in bytes) printf "%-24s %9d bytes\n", part, bytes[part] }' | sort
printf '%-24s %9d bytes\n' "${out##*/}" "$(stat -c %s "$out")"
