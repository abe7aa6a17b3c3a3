// Command penstock is the object store's server and its client in one binary.
package main

func main() {}
