#!/bin/sh
# The programs that tests need beside Python: the shells in which `jobs` is typed. Root on Debian gets them;
# elsewhere the tests that miss one are skipped and named at the end (with CI=true they fail).
set -eu
missing=
for tool in zsh fish dash bash; do
    command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Installing the shells that the tests type into:$missing"
    apt-get update -qq
    # shellcheck disable=SC2086 # one word a package
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
else
    echo "Not on this machine, so their tests are skipped:$missing"
fi
