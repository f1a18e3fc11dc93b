package credentialcache

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	clientauthenticationv1beta1 "k8s.io/client-go/pkg/apis/clientauthentication/v1beta1"

	"github.com/pinniped-toolkit/pinniped/internal/cachefile"
	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
)

const (
	// maxNotes is the maximum size of a notes file in bytes, enough for about 300 processes. A larger file is
	// truncated.
	maxNotes = 16 << 10
	// refusalCounts is how long a refused login is reported to the process that asked for it.
	refusalCounts = 10 * time.Second
)

// Asked records that a process received a credential, and reports whether it had received the same one before. kubectl
// asks a second time only when the cluster has refused the credential.
//
// The notes are in a separate file, because Pinniped's CLI would drop them from the cache. They hold no secret and need
// no lock: without a note, the process gets the cached credential again.
func (c *Cache) Asked(
	key string, process int, credential *clientauthenticationv1beta1.ExecCredentialStatus,
) (before bool) {
	if credential == nil {
		return false
	}
	sum := sha256.Sum256([]byte(credential.Token + "\x00" + credential.ClientCertificateData))
	note := fmt.Sprintf("%.16s %d %s\n", key, process, hex.EncodeToString(sum[:8]))
	if strings.Contains("\n"+c.notes(".asked"), "\n"+note) {
		return true
	}
	c.note(".asked", note)
	return false
}

// Refusal is the reason why a login was refused, and a hint.
type Refusal struct{ Message, Hint string }

// Refuse records that the login for a process was refused.
func (c *Cache) Refuse(key string, process int, why Refusal) {
	text, err := json.Marshal(why)
	if err != nil {
		return
	}
	c.note(".refused", fmt.Sprintf("%.16s %d %d %s\n", key, process, c.Now().Unix(), text))
}

// Refused returns the Refusal recorded for this process in the last 10 seconds, or nil. kubectl asks again for each of
// its first requests; the user is asked only once.
func (c *Cache) Refused(key string, process int) *Refusal {
	mine := fmt.Sprintf("%.16s %d ", key, process)
	for line := range strings.Lines(c.notes(".refused")) {
		rest, ours := strings.CutPrefix(line, mine)
		var at int64
		if _, err := fmt.Sscan(rest, &at); !ours || err != nil || c.Now().Sub(time.Unix(at, 0)).Abs() > refusalCounts {
			continue
		}
		_, text, _ := strings.Cut(rest, " ")
		var why Refusal
		if json.Unmarshal([]byte(text), &why) == nil {
			return &why
		}
	}
	return nil
}

// notes returns the content of the notes file with the suffix kind, or "" if there is none.
func (c *Cache) notes(kind string) string {
	if c.Path == "" {
		return ""
	}
	notes, _ := atomicfile.ReadFile(c.Path+kind, maxNotes) // nil if it cannot be read
	return string(notes)
}

func (c *Cache) note(kind, note string) {
	if c.Path != "" && os.MkdirAll(filepath.Dir(c.Path), 0o700) == nil {
		_ = cachefile.Append(c.Path+kind, note, maxNotes)
	}
}
