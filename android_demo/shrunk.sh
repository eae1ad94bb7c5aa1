#!/usr/bin/env bash
# Shrinks the core with its tests by R8, as an app's release build does, and runs the contract's tests on what is left, on the JVM: nothing may be
# missing that is only reached by name. The test classes keep their names, all else is renamed or removed. After test.sh, which compiles them.
set -euo pipefail
cd "$(dirname "$0")"
. ./tools.sh
made=$PWD/core/target/shrunk
[ -d core/target/test-classes ] || { echo "error: run test.sh first: the core's tests are not compiled" >&2; exit 1; }
rm -rf "$made" && mkdir -p "$made"
"${mvn[@]}" --projects core dependency:build-classpath "-Dmdep.outputFile=$made/jars"
junit=$(property junit.version) junit=1.${junit#5.} # the platform's version
fetch "org.junit.platform:junit-platform-console-standalone:$junit" "$made"

tests='**.*ContractTest'
cat >"$made/tests.pro" <<RULES
-keep class $tests { *; }
-keepattributes *Annotation*,Signature,InnerClasses,EnclosingMethod
-keep class **ContractTest$* { *; }
-ignorewarnings
# Optimised class files break lambdas whose interfaces were merged (AbstractMethodError); DEX, which has classes for lambdas, does not.
-dontoptimize
RULES
cat core/src/main/resources/META-INF/proguard/*.pro >>"$made/tests.pro"
inputs=() beside=() libraries=()
(cd core/target/classes && zip -q -r "$made/core.jar" . -i '*.class')
(cd core/target/test-classes && find . -name '*.class' ! -name '*Test.class' ! -name '*Test[$]*' -o -name '*ContractTest*.class' | zip -q "$made/tests.jar" -@)
inputs+=("$made/core.jar" "$made/tests.jar")
while read -r jar; do
    case $jar in
    "" | */junit-* | */opentest4j-* | */apiguardian-*) ;;
    */onnxruntime-*) libraries+=(--classpath "$jar") beside+=("$jar") ;; # kept whole by the rules
    *)
        inputs+=("$jar")
        unzip -q -p "$jar" 'META-INF/proguard/*' >>"$made/tests.pro" 2>/dev/null || true
        ;;
    esac
done < <(tr : '\n' <"$made/jars" && echo)
console=$made/junit-platform-console-standalone-$junit.jar
r8 "$made" --classfile "${libraries[@]}" --classpath "$console" --pg-conf "$made/tests.pro" --output "$made/shrunk.jar" "${inputs[@]}"
zip -q -d "$made/shrunk.jar" 'META-INF/*.SF' 'META-INF/*.DSA' 'META-INF/*.RSA' # of Bouncy Castle, whose classes have changed

names=()
while read -r class; do names+=(--select-class "$class"); done < <(cd core/target/test-classes &&
    find . -name '*ContractTest.class' | sed 's|^\./||; s|\.class$||; s|/|.|g' | sort)
cd core # where Surefire runs them
java -Dpathweave.repository="$(cd ../.. && pwd)" -jar "$console" execute --class-path "$made/shrunk.jar:${beside[0]}" "${names[@]}" --disable-banner \
    --details summary >"$made/tests.log" 2>&1 || { cat "$made/tests.log" >&2; exit 1; }
after=$(stat -c %s "$made/shrunk.jar")
echo "$(awk '/tests successful/ { print $2 }' "$made/tests.log") contract tests passed on the core as R8 shrinks it (with the libraries it uses $after bytes)"
