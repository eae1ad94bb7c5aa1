#!/usr/bin/env bash
# Says what a board lacks for run_demo.py, and how to get it. Changes nothing.
#
#   jetson_demo/setup.sh            needs no root; ends with 1 if something that the script requires is missing
#
#   PYTHON   the interpreter that will run the script (default: python3)
#   ROOT     where the system's files are looked for (default: /)
set -uo pipefail
export ORT_DISABLE_TELEMETRY=1    # ONNX Runtime is imported below

PYTHON=${PYTHON:-python3}
ROOT=${ROOT:-}
required_missing=0

ok() { printf 'ok       %s\n' "$1"; }
missing() {    # what is required, how to get it
    printf 'missing  %s\n         %s\n' "$1" "$2"
    required_missing=1
}
without() {    # what is not there, what that means or how to get it
    printf 'without  %s\n         %s\n' "$1" "$2"
}

# The interpreter and its packages
if ! version=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2]); sys.exit(sys.version_info < (3, 11))' 2>/dev/null); then
    missing "Python 3.11 or newer (${version:-no $PYTHON})" \
        "JetPack 6 brings 3.10: install a newer one beside it, for example with uv python install 3.11; then PYTHON=… $0"
else
    ok "Python $version"
    for package in numpy onnxruntime msgspec cryptography click rich PIL urllib3; do
        if "$PYTHON" -c "import $package" 2>/dev/null; then
            ok "package $package"
        elif [ "$package" = onnxruntime ]; then
            missing "package onnxruntime" "with CUDA: NVIDIA's package for your JetPack; without: $PYTHON -m pip install onnxruntime"
        else
            missing "package $package" "$PYTHON -m pip install . in the checkout installs all of these"
        fi
    done
    providers=$("$PYTHON" -c 'import onnxruntime; print(" ".join(onnxruntime.get_available_providers()))' 2>/dev/null || true)
    case " $providers " in
        *" CUDAExecutionProvider "*) ok "CUDA in ONNX Runtime" ;;
        *) without "CUDA in ONNX Runtime" "blocks run on the CPU; on a Jetson install NVIDIA's onnxruntime for your JetPack" ;;
    esac
    if "$PYTHON" -c 'import cv2' 2>/dev/null; then
        ok "OpenCV"
    else
        without "OpenCV" "--source video: and camera: need it: JetPack's, or $PYTHON -m pip install '.[camera]'"
    fi
fi

# The board
if [ -r "$ROOT/proc/device-tree/model" ]; then
    ok "board: $(tr -d '\0' < "$ROOT/proc/device-tree/model")"
else
    without "a board's name" "this is not a Jetson: the script runs all the same"
fi
mode=$(sed -n 's/.*pmode:0*\([0-9][0-9]*\).*/\1/p' "$ROOT/var/lib/nvpmodel/status" 2>/dev/null)
if [ -n "$mode" ]; then
    ok "power mode $mode (nvpmodel -q names it)"
else
    without "a power mode" "a change of it cannot be noticed"
fi
rails=$(find "$ROOT/sys/class/hwmon" "$ROOT/sys/bus/i2c/drivers/ina3221x" -follow -maxdepth 4 \
    \( -name 'curr1_input' -o -name 'in_power0_input' \) -readable 2>/dev/null | head -n 1)
if [ -n "$rails" ]; then
    ok "power sensors"
else
    without "power sensors" "energy is then stated watts times busy time: --power-watts"
fi
if [ -n "$(find "$ROOT/sys/class/thermal" -follow -maxdepth 2 -name temp -readable 2>/dev/null | head -n 1)" ]; then
    ok "temperatures"
else
    without "temperatures" "throttling by heat cannot be noticed"
fi
camera=$(find "$ROOT/dev" -maxdepth 1 -name 'video*' 2>/dev/null | sort | head -n 1)
if [ -z "$camera" ]; then
    without "a camera" "no /dev/video*; a ribbon-cable camera also needs its device tree: sudo /opt/nvidia/jetson-io/jetson-io.py"
elif [ -r "$camera" ]; then
    ok "camera $camera"
else
    without "access to $camera" "sudo usermod -aG video \$USER, then log in again"
fi
free_kb=$(df -Pk "${ROOT:-/}" 2>/dev/null | awk 'NR == 2 { print $4 }')
if [ "${free_kb:-0}" -ge 2097152 ]; then
    ok "2 GB of free disk"
else
    without "2 GB of free disk" "TensorRT's engines and fetched bundles need room"
fi

if [ "$required_missing" -ne 0 ]; then
    echo "the script cannot run yet"
    exit 1
fi
echo "ready: $PYTHON jetson_demo/run_demo.py --source folder:PATH --bundle FOLDER_OR_URL"
