#!/usr/bin/env bash
# A certificate authority and one certificate for each node, for RAY_USE_TLS between regions without a private network.
#
#   make-certs.sh FOLDER NODE...
#     NODE     an address or a name by which other nodes reach it; several for one node: 10.0.0.2,ray-head.example.com
#
# Writes FOLDER/ca.key, FOLDER/ca.crt, and FOLDER/FIRST-NAME/{node.key,node.crt,ca.crt} for each node. A CA that is
# there is used again, so nodes can be added later; a node that is there is left alone. Keys have mode 0600. ca.key
# stays where this ran: nodes do not need it. Needs openssl 1.1.1 or later. DAYS (365): how long nodes' are valid.
set -euo pipefail

[ $# -ge 2 ] || { echo "usage: make-certs.sh FOLDER NODE..." >&2; exit 2; }
folder=$1
shift
days=${DAYS:-365}
umask 077
mkdir -p "$folder"

key() { # FILE
    openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1" 2>/dev/null
}

names() { # NODE: its names as openssl writes them
    local name list=""
    local IFS=,
    for name in $1; do
        case "$name" in
            *[!A-Za-z0-9.:-]* | "") echo "make-certs.sh: NODE = $1: not an address or a name" >&2; exit 2 ;;
            *:*) list="$list,IP:$name" ;;
            *[!0-9.]*) list="$list,DNS:$name" ;;
            *) list="$list,IP:$name" ;;
        esac
    done
    echo "${list#,},IP:127.0.0.1,DNS:localhost"
}

if [ ! -f "$folder/ca.crt" ]; then
    key "$folder/ca.key"
    openssl req -x509 -new -sha256 -days 3650 -key "$folder/ca.key" -subj "/CN=decoupled-diloco CA" \
        -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign" \
        -out "$folder/ca.crt"
fi

for node in "$@"; do
    alternatives=$(names "$node")
    first=${node%%,*}
    place="$folder/$first"
    [ ! -f "$place/node.crt" ] || continue
    mkdir -p "$place"
    key "$place/node.key"
    openssl req -new -sha256 -key "$place/node.key" -subj "/CN=$first" -out "$place/node.csr"
    # Ray's processes are servers and clients to each other with the same certificate.
    openssl x509 -req -sha256 -days "$days" -in "$place/node.csr" -CA "$folder/ca.crt" -CAkey "$folder/ca.key" \
        -CAcreateserial -out "$place/node.crt" 2>/dev/null -extfile <(
        echo "basicConstraints=critical,CA:FALSE"
        echo "keyUsage=critical,digitalSignature"
        echo "extendedKeyUsage=serverAuth,clientAuth"
        echo "subjectAltName=$alternatives"
    )
    rm "$place/node.csr"
    cp "$folder/ca.crt" "$place/ca.crt"
done
