// Command reason prints why verbs are not available in the way it was built, or "available".
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/penstock-store/penstock/native"
)

func main() {
	var path string
	if len(os.Args) > 1 {
		path = os.Args[1]
	}
	_, err := native.Open(native.Options{Path: path})
	var u *native.UnavailableError
	switch {
	case errors.As(err, &u):
		fmt.Println(u.Reason)
	case err != nil:
		fmt.Println(err)
	default:
		fmt.Println("available")
	}
}
