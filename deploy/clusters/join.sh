#!/usr/bin/env bash
# Make this machine a node of the cluster: a user, the project in a virtual environment, and the supervised unit.
# By hand as root, or as the startup script of a VM, of a managed instance group, or of a TPU VM. Safe to repeat.
#
#   join.sh node|head SOURCE [EXTRA]
#     SOURCE   what pip installs: a checkout, a wheel, or a URL of one
#     EXTRA    cuda or tpu: JAX for this node's accelerators; nothing for CPUs
#
# Before it: /etc/decoupled-diloco/ray.env (see ray.env.example), and /etc/decoupled-diloco/token, the same everywhere.
set -euo pipefail

role=${1:?usage: join.sh node|head SOURCE [EXTRA]}
source=${2:?usage: join.sh node|head SOURCE [EXTRA]}
extra=${3:-}
settings=/etc/decoupled-diloco
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
unit="$here/ray-$role.service"

fail() {
    echo "join.sh: $1" >&2
    exit 2
}

[ -f "$unit" ] || fail "role = $role: must be node or head, and ray-$role.service must lie beside this script"
case "$extra" in "" | cuda | tpu) ;; *) fail "EXTRA = $extra: must be cuda, tpu, or nothing" ;; esac
[ "$(id -u)" = 0 ] || fail "must be run as root"
[ -s "$settings/ray.env" ] || fail "$settings/ray.env is missing: start from ray.env.example"
[ -s "$settings/token" ] || fail "$settings/token is missing: the cluster's token, the same on every node"

id diloco >/dev/null 2>&1 || useradd --system --create-home --shell /usr/sbin/nologin diloco
chown diloco: "$settings/token"
chmod 0600 "$settings/token"

[ -x /opt/decoupled-diloco/bin/python ] || python3 -m venv /opt/decoupled-diloco
/opt/decoupled-diloco/bin/pip install --quiet --upgrade "decoupled-diloco${extra:+[$extra]} @ $source"

install -m 0644 "$unit" "/etc/systemd/system/ray-$role.service"
systemctl daemon-reload
systemctl enable "ray-$role.service"
systemctl restart "ray-$role.service"
