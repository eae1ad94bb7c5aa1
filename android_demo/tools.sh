# Sourced by the scripts of this folder: how Maven, the JDK and R8 are called, and what is missing.

# Says what is missing and ends, which is an error only with PATHWEAVE_REQUIRE_JVM=1 (CI).
missing() {
    if [ "${PATHWEAVE_REQUIRE_JVM:-}" = 1 ]; then
        echo "error: $1" >&2
        exit 1
    fi
    echo "skipped: $1"
    exit 0
}

mvn=(mvn --quiet --batch-mode -Dstyle.color=never)

# The value of a property in pom.xml.
property() { sed -n "s|.*<$1>\(.*\)</$1>.*|\1|p" pom.xml; }

# Copies an artefact of Maven Central into a folder: fetch GROUP:NAME:VERSION FOLDER
fetch() { "${mvn[@]}" --projects core dependency:copy "-Dartifact=$1" "-DoutputDirectory=$2"; }

# R8 of the version in pom.xml, which is fetched into a folder: r8 FOLDER ARGUMENTS… The JDK has java.*, which app_check holds to what Android has.
r8() {
    local folder=$1 version
    shift
    version=$(property r8.version)
    [ -f "$folder/r8-$version.jar" ] || fetch "com.android.tools:r8:$version" "$folder"
    java -XX:TieredStopAtLevel=1 -cp "$folder/r8-$version.jar" com.android.tools.r8.R8 --release \
        --lib "$(dirname "$(dirname "$(realpath "$(command -v java)")")")" "$@" >"$folder/r8.log" 2>&1 || { cat "$folder/r8.log" >&2; exit 1; }
}
