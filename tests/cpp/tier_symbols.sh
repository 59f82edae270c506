#!/bin/sh
# usage: tier_symbols.sh NM TIER OBJECT...
# Fails if a tier's objects export a symbol that another object could share: the linker keeps one
# copy, and an AVX-512 copy of a common inline function would then run on a scalar machine.
nm=$1 tier=$2
shift 2
symbols=$("$nm" -C --defined-only "$@") || exit 2
strays=$(printf '%s\n' "$symbols" | grep -E '^[0-9a-f]+ [A-Zuvw] ' |
  grep -v -e "specfast::cpu::$tier::" -e ' V DW\.ref\.')
[ -z "$strays" ] && exit 0
printf 'not in specfast::cpu::%s:\n%s\n' "$tier" "$strays"
exit 1
