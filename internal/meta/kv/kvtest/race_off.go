//go:build !race

package kvtest

// checkEvery thins out the power failures that are looked at; here it does not.
const checkEvery = 1
