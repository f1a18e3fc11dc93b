// Package identity says who makes a request, and whether that user may: authentication as the API server does it,
// nested impersonation, and authorization by SubjectAccessReview.
//
// Reviews are the API server's answers, and are kept for a short time. Equal questions at a time are one review
// (reviews.go); parts of a wider question that was answered with yes need none (wider.go). Which client certificates are
// believed is in clienttrust.
//
// Locks: reviews.mu and AccessReviewer.widening. Neither is held while the other is taken.
package identity
