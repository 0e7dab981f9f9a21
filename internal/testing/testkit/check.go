package testkit

import "fmt"

// Check wants a condition to hold. The format says what the test got, and what it wants.
func Check(t Test, holds bool, format string, arguments ...any) {
	t.Helper()
	if !holds {
		t.Errorf(format, arguments...)
	}
}

// Require is [Check] for a condition that the rest of the test needs: the test ends if it does not hold.
func Require(t Test, holds bool, format string, arguments ...any) {
	t.Helper()
	if !holds {
		t.Fatal(fmt.Sprintf(format, arguments...))
	}
}
