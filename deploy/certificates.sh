#!/bin/bash
# Make the certificates of a cluster, in a new folder:
#
#     deploy/certificates.sh FOLDER [DAYS]
#
# ca.pem says which certificates belong to the cluster; cert.pem and key.pem are one of them. Copy
# these three to every machine of the cluster. Who has key.pem can read submissions and set points:
# only you may read it. The authority's own key is not kept, so no further certificate can be made;
# when the certificates have expired, or key.pem was lost, make new ones and copy them again.
set -euo pipefail
folder=${1:?usage: deploy/certificates.sh FOLDER [DAYS]}
days=${2:-200}
umask 077
mkdir "$folder"
cd "$folder"
curve=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
openssl req -x509 "${curve[@]}" -days "$days" -subj "/CN=course cluster" \
    -addext "keyUsage=critical,keyCertSign" -keyout "$work/ca-key.pem" -out ca.pem 2>"$work/log" ||
    { cat "$work/log" >&2; exit 1; }
openssl req -new "${curve[@]}" -subj "/CN=course grading" -keyout key.pem -out "$work/request.pem" \
    2>"$work/log" || { cat "$work/log" >&2; exit 1; }
printf '%s\n' "subjectKeyIdentifier=hash" "authorityKeyIdentifier=keyid" >"$work/extensions"
openssl x509 -req -in "$work/request.pem" -CA ca.pem -CAkey "$work/ca-key.pem" -CAcreateserial \
    -CAserial "$work/serial" -days "$days" -extfile "$work/extensions" -out cert.pem \
    2>"$work/log" || { cat "$work/log" >&2; exit 1; }
echo "$folder/ca.pem, $folder/cert.pem and $folder/key.pem are valid for $days days"
