//go:build race

package kvtest

// checkEvery thins out the power failures that are looked at: the race detector makes opening an
// engine thirty times slower. It is coprime to the number of survivals, so that all occur.
const checkEvery = 11
