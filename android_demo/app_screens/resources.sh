#!/usr/bin/env bash
# Compiles the app's resources with aapt2, as an Android build does: R.java, and the archive and properties that Robolectric reads.
#
#   resources.sh FRAMEWORK MIN_SDK TARGET_SDK
#
# FRAMEWORK: the jar of Android's classes and resources that the app's resources are linked with.
set -euo pipefail
cd "$(dirname "$0")"
framework=$1 min_sdk=$2 target_sdk=$3
made=$PWD/target/resources
rm -rf "$made"
mkdir -p "$made/java" "$made/assets" target/classes/com/android/tools

# Android's build puts the package into the manifest and the versions beside it; both are in app/build.gradle.kts there.
sed -e 's/<manifest /<manifest package="pathweave.demo" /' \
    -e "s|<application|<uses-sdk android:minSdkVersion=\"$min_sdk\" android:targetSdkVersion=\"$target_sdk\" />\n    <application|" \
    ../app/src/main/AndroidManifest.xml > "$made/AndroidManifest.xml"
aapt2 compile --dir ../app/src/main/res -o "$made/compiled.zip"
aapt2 link -I "$framework" --manifest "$made/AndroidManifest.xml" --java "$made/java" --proguard "$made/kept.pro" -o "$made/app.apk" "$made/compiled.zip" \
    2> "$made/link.log" || { cat "$made/link.log" >&2; exit 1; }

cat > target/classes/com/android/tools/test_config.properties <<EOF
android_merged_manifest=$made/AndroidManifest.xml
android_merged_assets=$made/assets
android_custom_package=pathweave.demo
android_resource_apk=$made/app.apk
EOF
