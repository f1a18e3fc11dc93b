package proxy

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestSecurityDocumentNamesTests checks that what docs/security.md says is shown by a test is at least looked at by
// one.
func TestSecurityDocumentNamesTests(t *testing.T) {
	t.Parallel()
	const root = "../.."
	text, err := os.ReadFile(filepath.Join(root, "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	exists := map[string]bool{}
	function := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "bin" || entry.Name() == ".git"):
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		content, err := os.ReadFile(path)
		for _, match := range function.FindAllStringSubmatch(string(content), -1) {
			exists[match[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`((?:Test|Fuzz)[A-Z0-9]\\w+)`").FindAllStringSubmatch(string(text), -1)
	if len(named) < 50 {
		t.Errorf("want the tests of every rule, got %d names", len(named))
	}
	for _, match := range named {
		if !exists[match[1]] {
			t.Errorf("docs/security.md names %s, which is not there", match[1])
		}
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| rule") && !strings.HasPrefix(line, "| limit") &&
			!regexp.MustCompile("^\\| (role|your own|`(Cluster)?Role )").MatchString(line) &&
			!strings.Contains(line, "`Test") &&
			!strings.Contains(line, "`Fuzz") {
			t.Errorf("a rule without a test: %s", line)
		}
	}
}
