// Package identity says who makes a request, and whether that user may: authentication as the API server does it,
// nested impersonation, and authorization by SubjectAccessReview.
//
// Reviews are the API server's answers, and are kept for a short time. Equal questions at a time are one review
// (reviews.go). Which client certificates are believed is in clienttrust.
//
// Locks: reviews.mu, under which no other is taken.
package identity
