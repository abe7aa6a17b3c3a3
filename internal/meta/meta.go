// Package meta holds the typed records of the metadata and their keys, over the kv contract.
//
// Called by: store, work, iam.
package meta
