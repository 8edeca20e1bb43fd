#!/bin/sh
# install.sh FILE: the project's wheel with requirements/FILE.txt into /opt/trainyard, in the versions that its tests run
# with and with checked hashes.
set -eu
if [ -s docker/ca-bundle.crt ]; then
    PIP_CERT=$PWD/docker/ca-bundle.crt
    export PIP_CERT
fi
[ -n "${SOURCE_DATE_EPOCH:-}" ] || unset SOURCE_DATE_EPOCH
export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_PROGRESS_BAR=off PIP_ROOT_USER_ACTION=ignore
python3 -m venv /opt/trainyard
for file in pip "$1"; do
    /opt/trainyard/bin/python3 -m pip install --require-hashes --only-binary :all: --requirement "requirements/$file.txt"
done
/opt/trainyard/bin/python3 -m hatchling build --target wheel --directory /tmp/wheel
/opt/trainyard/bin/python3 -m pip install --no-deps /tmp/wheel/trainyard-*.whl
cp docker/chores.py /opt/trainyard/chores.py
