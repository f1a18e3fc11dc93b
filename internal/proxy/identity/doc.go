// Package identity says who makes a request, and whether that user may: authentication as the API server does it,
// nested impersonation, and authorization by SubjectAccessReview.
//
// Reviews are the API server's answers, and are kept for a short time. Equal questions at a time are one review
// (flights.go); parts of a wider question that was answered with yes need none (wider.go); a plain read is sent while its
// review is under way, and its answer held back (speculative.go). Which client certificates are believed is in
// clienttrust.
//
// Locks: reviewFlights.mu and widerQuestions.mu. Neither is held while the other is taken.
package identity
