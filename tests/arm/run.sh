#!/usr/bin/env bash
# Runs the device SDK on an emulated ARM processor (aarch64, QEMU's user mode): the contract vectors, which are what x86-64 wrote and what ARM must
# write again bit by bit, the codec, the self-test with its child process, and an adaptation from the command line. Latencies mean nothing there.
# What is missing is said, which is an error only with PATHWEAVE_REQUIRE_ARM=1 (CI).
#
#   tests/arm/run.sh              those tests
#   tests/arm/run.sh ARGUMENTS…   pytest with these arguments instead
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."

missing() {
    if [ "${PATHWEAVE_REQUIRE_ARM:-}" = 1 ]; then
        echo "error: $1" >&2
        exit 1
    fi
    echo "skipped: $1"
    exit 0
}

[ "$(uname -sm)" = "Linux x86_64" ] || missing "the ARM tests emulate ARM on Linux x86-64; this is $(uname -sm): run make test"
for tool in apt-get dpkg unzip; do
    command -v "$tool" >/dev/null || missing "the ARM tests take Debian's packages for arm64; there is no $tool"
done
python=${PYTHON:-.venv/bin/python}
command -v "$python" >/dev/null || missing "there is no $python: run make, or set PYTHON"

packages=(libc6 libgcc-s1 libstdc++6 python3.11-minimal libpython3.11-minimal libpython3.11-stdlib zlib1g libexpat1 libssl3 libffi8 liblzma5
    libbz2-1.0 libsqlite3-0 libuuid1 libcrypt1 libncursesw6 libtinfo6 libreadline8)
platforms=(--platform manylinux2014_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux_2_28_aarch64 --platform manylinux_2_34_aarch64)
digest=$(cat "$here/run.sh" "$here/requirements.txt" | sha256sum | cut -c1-12)
kept=${PATHWEAVE_CACHE:-$HOME/.cache/pathweave}/arm/$digest

# 1. A folder with QEMU, Debian's Python for arm64 and the wheels; nothing is installed.
make_root() {
    local made=$1
    mkdir -p "$made"/{lists/partial,cache/archives/partial,packages,root,qemu,wheels,site}
    touch "$made/status"
    local options=(-o "APT::Architecture=arm64" -o "APT::Architectures=arm64" -o "APT::Sandbox::User=$(id -un)" -o "Dir::State::Lists=$made/lists"
        -o "Dir::Cache=$made/cache" -o "Dir::State::status=$made/status")
    apt-get "${options[@]}" update -qq &&
        (cd "$made/packages" && apt-get "${options[@]}" download -qq "${packages[@]}" &&
            apt-get -o "APT::Sandbox::User=$(id -un)" download -qq qemu-user-static) || return 1
    for package in "$made"/packages/*.deb; do
        case $package in
        */qemu-*) dpkg -x "$package" "$made/qemu" ;;
        *) dpkg -x "$package" "$made/root" ;;
        esac
    done
    "$python" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.11 "${platforms[@]}" --dest "$made/wheels" \
        --requirement "$here/requirements.txt" || return 1
    for wheel in "$made"/wheels/*.whl; do unzip -q -o "$wheel" -d "$made/site"; done
    rm -r "$made"/{lists,cache,packages,wheels}
}

if [ ! -d "$kept" ]; then
    echo "Downloading Python for arm64, QEMU and wheels, about 110 MB."
    made=$kept.$$
    trap 'rm -rf "$made"' EXIT
    make_root "$made" || missing "Debian's packages for arm64, or the wheels, cannot be had here"
    # The SDK's child processes are started by this name, which QEMU passes on as Python's own.
    cat >"$made/python" <<START
#!/usr/bin/env bash
export PYTHONHOME="$kept/root/usr" PYTHONPATH="\${PATHWEAVE_CHECKOUT:?}:$kept/site" PYTHONDONTWRITEBYTECODE=1
exec "$kept/qemu/usr/bin/qemu-aarch64-static" -cpu cortex-a76 -L "$kept/root" -0 "$kept/python" "$kept/root/usr/bin/python3.11" "\$@"
START
    chmod +x "$made/python"
    mv -T "$made" "$kept" 2>/dev/null || rm -rf "$made"  # another run was first
fi

# 2. The tests.
export PATHWEAVE_CHECKOUT=$PWD
tests=("$@")
if [ $# -eq 0 ]; then
    mapfile -t vectors < <(find tests/device_sdk -name 'test_*vectors.py' ! -name test_plan_vectors.py | sort)  # plans: minutes to write
    tests=(tests/contract tests/device_sdk/test_contract.py "${vectors[@]}" tests/device_sdk/offload/test_packing.py
        tests/device_sdk/execution/test_guarded_self_test.py::test_wrong_outputs_are_found_in_the_child
        tests/device_sdk/execution/test_guarded_self_test.py::test_errors_of_the_self_test_are_those_of_the_child
        tests/device_sdk/commands/test_adapt_command.py::test_the_chosen_plan_is_told_and_runs_from_then_on)
fi
"$kept/python" -c 'import platform; print("on", platform.machine(), "with Python", platform.python_version())'
exec "$kept/python" -m pytest -q -p no:cacheprovider --override-ini=addopts= --timeout 300 "${tests[@]}"
