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

// execInfo is what kubectl says about its call in KUBERNETES_EXEC_INFO.
type execInfo struct {
	APIVersion string                                         `json:"apiVersion"`
	Spec       clientauthenticationv1beta1.ExecCredentialSpec `json:"spec"`
}

// forbidsInput reports whether the caller keeps the terminal's input to itself.
func (i *execInfo) forbidsInput() bool { return i.APIVersion != "" && !i.Spec.Interactive }

// parseExecInfo reads KUBERNETES_EXEC_INFO. When it is empty or cannot be decoded, the response is in version v1beta1,
// and the cluster is not known.
func parseExecInfo(text string) execInfo {
	var info execInfo
	if text == "" || json.Unmarshal([]byte(text), &info) != nil {
		return execInfo{}
	}
	return info
}

// apiVersion returns the version to respond in: the caller's if it is v1, otherwise v1beta1.
func (i *execInfo) apiVersion() string {
	if v1 := clientauthenticationv1.SchemeGroupVersion.String(); i.APIVersion == v1 {
		return v1
	}
	return clientauthenticationv1beta1.SchemeGroupVersion.String()
}

// clusterAt returns what the caller says about its cluster, if that is the one at endpoint.
func (i *execInfo) clusterAt(endpoint string) *clientauthenticationv1beta1.Cluster {
	cluster := i.Spec.Cluster
	if cluster == nil || strings.TrimRight(cluster.Server, "/") != strings.TrimRight(endpoint, "/") {
		return nil
	}
	return cluster
}

// writeCredential responds to the caller. Both versions of the API have the same fields.
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
