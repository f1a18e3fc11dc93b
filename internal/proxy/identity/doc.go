// Package identity says who makes a request, and whether that user may: authentication as the API server does it,
// nested impersonation, and authorization by SubjectAccessReview.
//
// Reviews are decisions of the API server, cached for a short time. Equal concurrent questions share one review
// (reviews.go). Which client certificates are believed is in clienttrust.
//
// Locks: reviews.mu, under which no other is taken.
package identity
