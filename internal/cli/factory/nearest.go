package factory

// Nearest returns the one of known that text is most likely a misspelling of; empty when none is near.
func Nearest(text string, known []string) string {
	best, distance := "", max(2, len(text)/3)+1
	for _, one := range known {
		if d := edits(text, one); d < distance {
			best, distance = one, d
		}
	}
	return best
}

// edits counts how many letters have to be added, removed or replaced to get from a to b.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(row[j+1]+1, row[j]+1, cost)
		}
	}
	return row[len(b)]
}
