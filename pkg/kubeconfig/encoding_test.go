package kubeconfig_test

import (
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/unicode"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestEncodings shows that files from PowerShell are changed like others and keep their encoding.
func TestEncodings(t *testing.T) {
	t.Parallel()
	made := clientcmdapi.NewConfig()
	made.Clusters["made"] = &clientcmdapi.Cluster{Server: "https://made.example.com"}
	crlf := func(data string) []byte {
		return []byte(strings.ReplaceAll(strings.ReplaceAll(userFile, "${OLD}", data), "\n", "\r\n"))
	}
	json := `{"kind":"Config","clusters":[{"name":"ü","cluster":{"server":"https://proxy.example.com"}}]}`
	newBundle := bundle(t)
	to := kubeconfig.Target{
		Endpoint: kubeconfig.Endpoint{URL: "https://proxy.example.com"}, CABundle: newBundle,
	}
	for name, as := range map[string]encoding.Encoding{
		"UTF-16, little endian": unicode.UTF16(unicode.LittleEndian, unicode.UseBOM),
		"UTF-16, big endian":    unicode.UTF16(unicode.BigEndian, unicode.UseBOM),
		"UTF-8 with a mark":     unicode.UTF8BOM,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			encode := func(text []byte) []byte {
				return must.Get(as.NewEncoder().Bytes(text))(t)
			}
			before := encode(crlf(oldData))
			rotation, err := kubeconfig.Rotate(before, to)
			if err != nil {
				t.Fatal(err)
			}
			if want := encode(crlf(base64.StdEncoding.EncodeToString(newBundle))); !cmp.Equal(rotation.Content, want) {
				t.Errorf("got %q\nwant %q", rotation.Content, want)
			}
			rotation, err = kubeconfig.Rotate(encode([]byte(json)), to)
			if err != nil || !rotation.Changed() {
				t.Errorf("JSON: %v", err)
			}
			path := filepath.Join(t.TempDir(), "config")
			must.Do(t, os.WriteFile(path, before, 0o600))
			must.Get(kubeconfig.MergeFile(t.Context(), path, made, false))(t)
			config, err := kubeconfig.Load(path)
			if err != nil || config.Clusters["made"] == nil || config.Clusters["ünïcode"] == nil {
				t.Errorf("merged: %v, %v", err, config)
			}
		})
	}
	_, err := kubeconfig.Rotate([]byte("\xff\xfek\x00\x00\xd8"), to) // half a character
	if !errors.Is(err, kubeconfig.ErrDamaged) {
		t.Errorf("a file with half a character: %v", err)
	}
}
