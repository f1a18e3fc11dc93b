package factory

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// NearestFlag returns the flag that was probably meant, if err is about an unknown flag: one with a similar name, or
// one that the name is a part of. It returns "" if there is none.
func NearestFlag(cmd *cobra.Command, err error) string {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok || len(unknown.GetSpecifiedName()) < 2 {
		return ""
	}
	name := unknown.GetSpecifiedName()
	var known []string
	part := ""
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		if flag.Hidden {
			return
		}
		known = append(known, flag.Name)
		if strings.HasSuffix(flag.Name, "-"+name) || strings.HasPrefix(flag.Name, name+"-") {
			part = flag.Name
		}
	})
	if near := Nearest(name, known); near != "" {
		return near
	}
	return part
}

// Nearest returns the element of known that text is most likely a misspelling of, or "" if none is near. Of two equally
// near ones it prefers the one of the same length, as transposed letters are common.
func Nearest(text string, known []string) string {
	best, distance := "", max(2, len(text)/3)+1
	for _, one := range known {
		if d := edits(text, one); d < distance || best != "" && d == distance && len(one) == len(text) {
			best, distance = one, d
		}
	}
	return best
}

// edits returns the Levenshtein distance of a and b.
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
