#!/usr/bin/env bash
# Two regions of one run on this machine. Region eu joins through a door, leaves, and joins again; then the run stops.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
python=${PYTHON:-python} folder=$(mktemp -d)
PYTHONPATH=$(cd ../.. && pwd)${PYTHONPATH:+:$PYTHONPATH}
export PYTHONPATH
trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm -rf "$folder"' EXIT

"$python" -m orchestrator door "$folder/store" --host 127.0.0.1 --port 0 >"$folder/door" &
until grep -q "^https://" "$folder/door"; do sleep 0.2; done
uri=$(grep -o "^https://[^ ]*" "$folder/door")
invite() { "$python" -m orchestrator invite "$1" "$folder/store" | sed -n "s/^export //p"; }
control=$(invite control) eu=$(invite eu)

join() {
    env "$eu" "$python" -m orchestrator join "$uri/run" --region eu --wait 60 &
    joined=$!
}
until_stepping() {
    until "$python" -c 'import json, sys
states = [row["state"] for row in json.load(open(sys.argv[1]))["learners"] if row["name"] == "learner-eu-0"]
sys.exit((states == ["stepping"]) != (sys.argv[2] == "yes"))' "$folder/run/status.json" "$1" 2>/dev/null; do
        kill -0 "$run" || exit 1 # it has ended
        sleep 1
    done
}

join
env "$control" "$python" -m orchestrator run recipe.toml --set "run.folder=$folder/run" --set "durability.store=$uri/run" &
run=$!
until_stepping yes
sleep 5
echo "demo.sh: region eu leaves"
kill "$joined"
wait "$joined" || true
until_stepping no
join
until_stepping yes
sleep 5
"$python" -m orchestrator stop "$folder/run"
wait "$run"
