package login

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientauthenticationv1 "k8s.io/client-go/pkg/apis/clientauthentication/v1"
	clientauthenticationv1beta1 "k8s.io/client-go/pkg/apis/clientauthentication/v1beta1"
)

// execInfo is the content of KUBERNETES_EXEC_INFO, from kubectl.
type execInfo struct {
	APIVersion string                                         `json:"apiVersion"`
	Spec       clientauthenticationv1beta1.ExecCredentialSpec `json:"spec"`
}

// forbidsInput reports whether the caller does not share the terminal's input.
func (i *execInfo) forbidsInput() bool { return i.APIVersion != "" && !i.Spec.Interactive }

// parseExecInfo parses KUBERNETES_EXEC_INFO. If it is empty or invalid, the response has version v1beta1 and the
// cluster is unknown.
func parseExecInfo(text string) execInfo {
	var info execInfo
	if text == "" || json.Unmarshal([]byte(text), &info) != nil {
		return execInfo{}
	}
	return info
}

// apiVersion returns the version of the response: v1 if the caller uses it, otherwise v1beta1.
func (i *execInfo) apiVersion() string {
	if v1 := clientauthenticationv1.SchemeGroupVersion.String(); i.APIVersion == v1 {
		return v1
	}
	return clientauthenticationv1beta1.SchemeGroupVersion.String()
}

// clusterAt returns the caller's cluster if it is the one at endpoint, or nil.
func (i *execInfo) clusterAt(endpoint string) *clientauthenticationv1beta1.Cluster {
	cluster := i.Spec.Cluster
	if cluster == nil || strings.TrimRight(cluster.Server, "/") != strings.TrimRight(endpoint, "/") {
		return nil
	}
	return cluster
}

// writeCredential writes the response to the caller. Both versions of the API have the same fields.
func writeCredential(w io.Writer, apiVersion string, status *clientauthenticationv1beta1.ExecCredentialStatus) error {
	response := clientauthenticationv1beta1.ExecCredential{
		TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: "ExecCredential"},
		Status:   status,
	}
	text, err := json.Marshal(response)
	if err != nil {
		return fmt.Errorf("encoding the credential: %w", err)
	}
	if _, err := w.Write(append(text, '\n')); err != nil {
		return fmt.Errorf("writing the credential: %w", err)
	}
	return nil
}
