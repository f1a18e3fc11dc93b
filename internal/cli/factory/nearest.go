package factory

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// NearestFlag returns the flag of a command that was probably meant, when err says that there is none of that name: one
// of which the name is a part, or that is spelled nearly the same. It is empty when there is none.
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

// Nearest returns the one of known that text is most likely a misspelling of; empty when none is near. Of two that are
// as near, it is the one of the same length, as letters are often swapped.
func Nearest(text string, known []string) string {
	best, distance := "", max(2, len(text)/3)+1
	for _, one := range known {
		if d := edits(text, one); d < distance || best != "" && d == distance && len(one) == len(text) {
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
