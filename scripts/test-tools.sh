#!/bin/sh
# The programs that tests need beside Python: the shells in which `jobs` is typed, a container engine with what its base
# image is made by, and a browser for the dashboard. Root on Debian gets them; elsewhere the tests that miss one are
# skipped and named at the end (with CI=true they fail).
set -eu
missing=
need() { # PROGRAM PACKAGE
    command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}
for shell in zsh fish dash bash; do need "$shell" "$shell"; done
need dockerd docker.io
need docker-init tini
need iptables iptables
need ip iproute2
need debootstrap debootstrap
need chromium "chromium fonts-dejavu-core"

[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Installing what the tests need:$missing"
    apt-get update -qq
    # Debian starts a daemon with its package; the tests start theirs, so that it ends with them.
    # shellcheck disable=SC2086 # one word a package
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
else
    echo "Not on this machine, so their tests are skipped:$missing"
fi
