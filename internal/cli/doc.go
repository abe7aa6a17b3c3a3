// Package cli holds the commands of the penstock binary. It uses package client like any program
// would, without shortcuts into a server.
//
// Called by: cmd/penstock.
//
// Rules of every command:
//  1. Results go to stdout, diagnostics and progress to stderr.
//  2. With --json, stdout holds one JSON object per line; fields are only ever added.
//  3. Exit codes: see the Exit constants and `penstock help`.
//  4. What destroys needs --yes.
//  5. Progress bars appear on a terminal only.
//  6. Credentials come from the AWS_* environment only, and files that it names.
//
// What it does not do: serving. The caller gives the function behind `penstock serve`.
package cli
