#!/bin/sh
# keep_report.sh COMPILER...: runs it and keeps what ptxas reports of each kernel in OBJECT.ptxas;
# everything else that the compiler says is passed on.
object=
previous=
for argument; do
  [ "$previous" = -o ] && object=$argument
  previous=$argument
done
said=$object.said
"$@" 2>"$said"
status=$?
report='^ptxas info|^ +[0-9]+ bytes stack frame'
grep -E "$report" "$said" >"$object.ptxas"
grep -Ev "$report" "$said" >&2
rm -f "$said"
exit $status
