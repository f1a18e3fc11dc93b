// Package satoken lets users in with tokens of service accounts, on clusters without a signer for users and without a
// way to the impersonation proxy.
//
// Each user gets a service account of their own, in a namespace that holds nothing else, and a ClusterRole that lets
// this account impersonate exactly this user: the name, the UID, the groups, and the extras of the newest login with
// these groups, without the ID of the token that it logged in with. A login gets a short-lived token of the account
// and the headers with which a client acts as the user. The API server sees, and logs, both.
//
// What keeps this safe:
//
//   - Objects are named by a hash of the authenticator, the user, the UID and the groups, so that one user's objects can
//     never be another's, and no token gains the groups that a later login has proved.
//   - Order: the account, its ClusterRole, its binding, and the token last. Before a token is given, the API server
//     decides by the role as it has to be.
//   - The account says until when tokens of it may live. That is written before a token is requested, and the
//     collector deletes only later than that, and only objects that have not changed since it read them.
//   - The agent does all this as a service account of its own. A ValidatingAdmissionPolicy limits what that one may
//     write to objects of this shape; without the policy, nothing is issued.
package satoken
