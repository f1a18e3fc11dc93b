#!/usr/bin/env bash
# Prints the license texts of Go and of every module that the CLI links on any of its systems.
# A module without a text, or with a license that is not one of these, is an error.
set -euo pipefail
known='apache license,? version 2|mozilla public license,? version 2|permission to use, copy, modify|permission is hereby granted, free of charge|redistribution and use in source and binary forms'
echo "pinniped is licensed under Apache-2.0. It contains Go's standard library and the modules below."
{
  echo "Go $(go env GOROOT)"
  for system in linux darwin windows; do
    GOOS=$system CGO_ENABLED=0 go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}}@{{.Version}} {{.Dir}}{{end}}{{end}}' ./cmd/pinniped
  done
} | sort -u | while read -r module folder; do
  [ -n "$module" ] || continue
  texts=$(find "$folder" -maxdepth 1 -type f \( -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'notice*' -o -iname 'patents*' \) | sort)
  cat ${texts:-/dev/null} | tr -s '[:space:]' ' ' | grep -ciE "$known" >/dev/null || { echo "error: reading the license of $module: unknown" >&2; exit 1; }
  printf '\n%s\n%s\n\n' "--------------------------------------------------------------------------------" "$module"
  cat $texts
done
