package hostile

import (
	"os"
	"strconv"
	"testing"
)

// ForceVariable is the environment variable that says how many times as hard as told the tests attack. Where it is not set they
// take small numbers, which keep `make test` short. `make proof` sets 10.
const ForceVariable = "NOTIFIER_TEST_FORCE"

// Forced tells whether ForceVariable is set.
func Forced() bool { return os.Getenv(ForceVariable) != "" }

// Times is how often a test does something: quick times, or, where ForceVariable is set, that many times told. Told is the number
// with which the harm was first seen.
func Times(t testing.TB, quick, told int) int {
	t.Helper()
	if !Forced() {
		return quick
	}
	force, err := strconv.Atoi(os.Getenv(ForceVariable))
	if err != nil || force < 1 {
		t.Fatalf("%s is %q, want a number from 1 on", ForceVariable, os.Getenv(ForceVariable))
	}
	return force * told
}
