#!/usr/bin/env bash
# From a bare machine with one NVIDIA GPU and its driver to the figures of benchmarks/gpu.py, in 8 minutes.
#
#   benchmarks/gpu.sh [--wheels DIR] [--venv DIR] [--out FILE] [--minutes N] [--devices gpu|cpu] [-- OPTIONS]
#     --wheels DIR   a folder with all wheels; by default pip's own index
#     --venv DIR     the virtual environment, made if it is not there (default: .venv-gpu)
#     --out FILE     where the rows go, one JSON object a line (default: runs/gpu.jsonl)
#     --minutes N    for all of it, the installation included (default: 8)
#     --devices cpu  CPU devices and a small model: to try the script
#     OPTIONS        of benchmarks/gpu.py
#
# It needs Python 3.11 to 3.13 with venv. JAX's plugin is for CUDA 13, or for CUDA 12 where the driver is older than 580.
# Ray's wheel is mostly ray/jars, which only Java programs use. To transfer it without them, on another machine:
#
#   python -m pip download --dest DIR --constraint constraints.txt 'jax[cuda13]' .
#   zip --delete DIR/ray-*.whl 'ray/jars/*'
#
# pip installs such a wheel; this script then checks that Ray starts.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
began=$SECONDS

wheels="" venv=.venv-gpu out=runs/gpu.jsonl minutes=8 devices=gpu
fail() {
    echo "gpu.sh: $1" >&2
    exit 2
}
while (($#)); do
    case "$1" in
    --wheels | --venv | --out | --minutes | --devices)
        [ $# -ge 2 ] || fail "$1 needs a value"
        printf -v "${1#--}" %s "$2"
        shift 2
        ;;
    --)
        shift
        break
        ;;
    *) fail "$1: no such option; known are --wheels, --venv, --out, --minutes, --devices, and -- before those of gpu.py" ;;
    esac
done
[ -z "$wheels" ] || [ -d "$wheels" ] || fail "--wheels = $wheels: no such folder"
case "$devices" in gpu | cpu) ;; *) fail "--devices = $devices: must be gpu or cpu" ;; esac
[[ "$minutes" =~ ^[1-9][0-9]*$ ]] || fail "--minutes = $minutes: must be a whole number above 0"

# ---------------------------------------------------------------- the installation

extra=""
if [ "$devices" = gpu ]; then
    driver=$(nvidia-smi --id=0 --query-gpu=driver_version --format=csv,noheader 2>/dev/null) ||
        fail "nvidia-smi does not answer: install NVIDIA's driver, or give the container the GPU"
    [ -n "$driver" ] || fail "nvidia-smi shows no GPU"
    extra=cuda13
    [ "${driver%%.*}" -ge 580 ] || extra=cuda12
    echo "gpu.sh: driver $driver, jax[$extra]" >&2
fi

python=""
for each in python3.11 python3.12 python3.13 python3; do
    if "$each" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; then
        python=$each
        break
    fi
done
if [ ! -x "$venv/bin/python" ]; then
    [ -n "$python" ] || fail "needs Python 3.11, 3.12 or 3.13 with venv"
    "$python" -m venv "$venv"
fi

# Pins fit the project's tests; the plugin of CUDA 12 or 13 is not among them, and follows jaxlib.
install=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt)
[ -z "$wheels" ] || install+=(--no-index --find-links "$wheels")
if ! "$venv/bin/python" -c 'import jax, optax, psutil, pydantic, pyarrow, ray, typer' 2>/dev/null; then
    # What [project.dependencies] lists, without the project itself: it runs from this checkout.
    "$venv/bin/python" - >"$venv/requirements.txt" <<'LIST'
import tomllib

with open("pyproject.toml", "rb") as file:
    print("\n".join(tomllib.load(file)["project"]["dependencies"]))
LIST
    "${install[@]}" --requirement "$venv/requirements.txt"
fi
if [ -n "$extra" ] && ! "$venv/bin/python" -c "import importlib.metadata as m; m.version('jax-$extra-plugin')" 2>/dev/null; then
    "${install[@]}" "jax[$extra]"
fi
"$venv/bin/python" -c 'import ray._raylet' || fail "Ray's wheel is not whole: leave out ray/jars only"
echo "gpu.sh: installed after $((SECONDS - began)) s" >&2

# ---------------------------------------------------------------- the measurement

left=$((60 * minutes - (SECONDS - began) - 10)) # ten seconds for its end
[ "$left" -ge 60 ] || fail "the installation left $left s of $minutes minutes: run it again, with the environment made"
mkdir -p "$(dirname "$out")"
"$venv/bin/python" benchmarks/gpu.py --devices "$devices" --deadline-s "$left" --json "$@" | tee "$out"
