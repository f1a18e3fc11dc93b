package oidctest

import (
	"crypto/rand"
	"net/http"
)

// ApproveDevices approves every pending device code, as the user.
func (i *Issuer) ApproveDevices() {
	i.mu.Lock()
	defer i.mu.Unlock()
	for code := range i.devices {
		i.devices[code] = true
	}
}

func (i *Issuer) device(w http.ResponseWriter) {
	code := rand.Text()
	i.mu.Lock()
	i.devices[code] = false
	i.mu.Unlock()
	answer(w, http.StatusOK, map[string]any{
		"device_code": code, "user_code": "WDJB-MJHT", "verification_uri": i.URL + "/enter",
		"verification_uri_complete": i.URL + "/enter?user_code=WDJB-MJHT", "expires_in": 60, "interval": 1,
	})
}

func (i *Issuer) deviceToken(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	approved, known := i.devices[r.PostForm.Get("device_code")]
	i.mu.Unlock()
	switch {
	case !known:
		problem(w, "expired_token", "")
		return
	case !approved:
		problem(w, "authorization_pending", "")
		return
	}
	token, err := i.sign(ClientID, "")
	if err != nil {
		problem(w, "server_error", err.Error())
		return
	}
	answer(
		w,
		http.StatusOK,
		map[string]any{"access_token": rand.Text(), "token_type": "Bearer", "expires_in": 300, "id_token": token},
	)
}
