package oidctest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"
)

// Browse is a user's browser: it opens address, follows redirects, submits forms, and returns the text of the last
// page. It trusts the CA bundle (PEM).
func Browse(ctx context.Context, caBundle []byte, address string) (string, error) {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(caBundle)
	client := &http.Client{
		Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		},
		Timeout: 30 * time.Second,
	}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return "", err
	}
	text, err := fetch(client, request)
	if err != nil {
		return "", err
	}
	action := regexp.MustCompile(`<form method="post" action="([^"]*)">`).FindStringSubmatch(text)
	if action == nil {
		return text, nil
	}
	form := url.Values{}
	for _, field := range regexp.MustCompile(`name="([^"]*)" value="([^"]*)"`).FindAllStringSubmatch(text, -1) {
		form.Set(field[1], field[2])
	}
	request, err = http.NewRequestWithContext(ctx, http.MethodPost, action[1], strings.NewReader(form.Encode()))
	if err != nil {
		return "", err
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return fetch(client, request)
}

func fetch(client *http.Client, request *http.Request) (string, error) {
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	return string(text), err
}
