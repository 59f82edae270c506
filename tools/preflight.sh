#!/bin/sh
# Says in one sentence each what this machine lacks to build specfast, and the Debian package that
# brings it. PYTHON and CXX name the interpreter and the compiler, as they do for make.
python=${PYTHON:-python3}
missing=0

lacks() { # what package
  echo "$1 is missing: on Debian, apt-get install $2." >&2
  missing=1
}

command -v make >/dev/null || lacks "make" make
command -v "${CXX:-g++}" >/dev/null || lacks "A C++ compiler (${CXX:-g++})" g++
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
  lacks "Python 3.10 or later ($python)" python3
else
  "$python" -c 'import ensurepip, venv' 2>/dev/null || lacks "Python's venv module" python3-venv
  header=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h
  [ -f "$header" ] || lacks "Python's header ($header)" python3-dev
fi
exit $missing
