#!/usr/bin/env bash
# Prints the lines of standard input, at most three, that are most like a word: hack/nearest.sh WORD <candidates
# A candidate is like the word if it contains it, or if few letters differ (Levenshtein) in the whole or after the last /.
set -euo pipefail
awk -v wanted="${1:?usage: hack/nearest.sh WORD}" '
	function distance(a, b,    i, j, n, m, row, above, old, best) {
		n = length(a); m = length(b)
		for (j = 0; j <= m; j++) row[j] = j
		for (i = 1; i <= n; i++) {
			above = row[0]; row[0] = i
			for (j = 1; j <= m; j++) {
				old = row[j]
				best = above + (substr(a, i, 1) != substr(b, j, 1))
				if (row[j] + 1 < best) best = row[j] + 1
				if (row[j-1] + 1 < best) best = row[j-1] + 1
				row[j] = best; above = old
			}
		}
		return row[m]
	}
	function last(s) { sub(/.*\//, "", s); return s }
	{
		d = distance(wanted, $0)
		e = distance(last(wanted), last($0))
		if (e < d) d = e
		if (d <= length(last(wanted)) / 3 || index(tolower($0), tolower(wanted))) printf "%03d %s\n", d, $0
	}' | LC_ALL=C sort | sed -n '1,3s/^[0-9]* //p'
