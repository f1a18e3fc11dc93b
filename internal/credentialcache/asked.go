package credentialcache

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"strings"

	clientauthenticationv1beta1 "k8s.io/client-go/pkg/apis/clientauthentication/v1beta1"
)

// maxAsked bounds the file that Asked keeps: some three hundred askers. It then begins anew.
const maxAsked = 16 << 10

// Asked notes that a process has got a credential, and reports whether it had got the same one before. kubectl asks once,
// and a second time only when the cluster has refused what it got.
//
// The notes are in a file of their own beside the cache: Pinniped's CLI would drop them from the cache. They hold no
// secret. There is no lock, and a note that is lost does no harm: the process gets what is in the cache.
func (c *Cache) Asked(
	key string,
	process int,
	credential *clientauthenticationv1beta1.ExecCredentialStatus,
) (before bool) {
	if c.Path == "" || credential == nil {
		return false
	}
	path := c.Path + ".asked"
	sum := sha256.Sum256([]byte(credential.Token + "\x00" + credential.ClientCertificateData))
	note := fmt.Sprintf("%.16s %d %s\n", key, process, hex.EncodeToString(sum[:8]))
	flags := os.O_WRONLY | os.O_CREATE | os.O_APPEND
	if info, err := os.Lstat(path); err == nil {
		if !info.Mode().IsRegular() {
			return false
		}
		if info.Size() > maxAsked {
			flags |= os.O_TRUNC
		} else if notes, err := os.ReadFile(path); err == nil && strings.Contains("\n"+string(notes), "\n"+note) {
			return true
		}
	}
	file, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return false
	}
	_, _ = file.WriteString(note) // one write, which the system does not mix with that of another process
	_ = file.Close()
	return false
}
