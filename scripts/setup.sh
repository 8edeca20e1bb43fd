#!/bin/sh
# setup.sh PYTHON VENV FILE: installs requirements/FILE.txt into a virtual environment, and the project and the trainer's
# library, editable, unless FILE is `tools`. Only wheels with a hash of the file are installed: what is built from sources may fetch anything.
set -eu
python=$1 venv=$2 file=$3

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "Trainyard needs Python 3.11 or later; '$python' is older or missing. Choose another: make PYTHON=python3.12 ..." >&2
    exit 1
fi
[ -x "$venv/bin/python" ] || echo "Creating the virtual environment $venv."
if [ ! -x "$venv/bin/python" ] && ! "$python" -m venv "$venv"; then
    rm -rf "$venv"
    echo "The virtual environment could not be created. On Debian: apt-get install python3-venv" >&2
    exit 1
fi
echo "Setting up $venv ($file); the first time takes a minute or two."

# Every 15 seconds, until it is killed or this script has ended: a log is not silent for minutes.
tick() {
    seconds=0
    while sleep 15 </dev/null >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
        seconds=$((seconds + 15))
        echo " still installing $1, for $seconds s"
    done
}

# On a terminal one line shows what pip is doing. Its warnings and errors come at the end. Elsewhere it says what it does.
pip_install() {
    what=$1
    shift
    set -- "$venv/bin/python" -m pip install --disable-pip-version-check "$@"
    if [ ! -t 1 ]; then
        echo " installing $what"
        tick "$what" &
        ticker=$! failed=0
        "$@" --quiet || failed=$?
        kill $ticker
        wait $ticker 2>/dev/null || true
        return $failed
    fi
    { "$@" --progress-bar off 2>&1 || echo "pip failed"; } | {
        count=0 failed=0 messages=
        while IFS= read -r line; do
            case $line in
                "pip failed") failed=1 ;;
                Collecting\ *) count=$((count + 1)) ;;
                WARNING:* | ERROR:* | error:*) messages="$messages$line
" ;;
            esac
            [ $failed = 1 ] || last=$line
            printf '\r\033[K%.78s' " $count packages: $line"
        done
        printf '\r\033[K%s' "$messages" >&2
        [ $failed = 0 ] || { [ -n "$messages" ] || echo "$last"; exit 1; } >&2
    }
}

locked() {
    pip_install "requirements/$1.txt" --require-hashes --only-binary :all: --requirement "requirements/$1.txt"
}

locked pip
locked "$file"
[ "$file" = tools ] || pip_install "this project" --no-deps --no-build-isolation --editable . --editable ./trainer_library
