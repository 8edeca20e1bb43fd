#!/bin/sh
# Installs the programs that tests need besides Python: shells, a container engine with debootstrap, an SSH
# server, and a browser.
# Docker Compose, Apptainer and Slurm are unpacked by their own tests (tests/beds), out of packages of Debian.
# Needs root on Debian; elsewhere tests without their program are skipped and listed at the end (with CI=true they fail).
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
need sshd openssh-server
need chromium "chromium fonts-dejavu-core"
need prometheus prometheus
need prometheus-alertmanager prometheus-alertmanager

[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Installing what the tests need:$missing"
    apt-get update -qq
    # RUNLEVEL=1 keeps Debian from starting the daemons; the tests start and stop their own.
    # shellcheck disable=SC2086 # one word a package
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
else
    echo "Not installed, so tests that need them are skipped:$missing"
fi
