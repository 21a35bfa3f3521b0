// Package suggest finds the name that a mistyped one stands for, for "did you
// mean".
package suggest

import "slices"

// Nearest returns the word of known that is nearest to got, if it is near
// enough to be a typing mistake, and "" otherwise.
func Nearest(got string, known []string) string {
	words := slices.Clone(known)
	slices.Sort(words)
	best, bestDist := "", max(1, min(3, len(got)/3))+1
	for _, w := range words {
		if d := editDistance(got, w, bestDist); d < bestDist {
			best, bestDist = w, d
		}
	}
	return best
}

// editDistance is the number of insertions, deletions, replacements and swaps
// of neighbours between a and b, or limit if it is at least that.
func editDistance(a, b string, limit int) int {
	if len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	prev2, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
		}
		prev2, prev, cur = prev, cur, prev2
	}
	return min(prev[len(b)], limit)
}
