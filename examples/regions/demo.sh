#!/usr/bin/env bash
# Two regions of one run on this machine. Region eu joins through a door, leaves in the middle, and joins again.
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
steps() { "$python" -c 'import json, sys
for row in json.load(open(sys.argv[1]))["learners"]:
    if row["name"] == "learner-eu-0": print(row["state"])' "$folder/run/status.json" 2>/dev/null || true; }

join
env "$control" "$python" -m orchestrator run recipe.toml --set "run.folder=$folder/run" --set "durability.store=$uri/run" &
run=$!
until [ "$(steps)" = stepping ]; do sleep 1; done
sleep 5
echo "demo.sh: region eu leaves"
kill "$joined"
wait "$joined" || true
join
wait "$run"
