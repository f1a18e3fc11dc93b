// Package jwtauthenticator evaluates JWTAuthenticators: does the issuer tell where its keys are, can they be fetched,
// and does the API server's own code accept the claims and rules?
package jwtauthenticator
