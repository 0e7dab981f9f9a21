package hostile

import (
	"os"
	"strconv"
	"testing"
)

// ForceVariable is the environment variable with the factor by which the tests multiply each attack. Without it the tests use small
// numbers, which keep `make test` short. `make proof` sets 10.
const ForceVariable = "NOTIFIER_TEST_FORCE"

// Forced reports whether ForceVariable is set.
func Forced() bool { return os.Getenv(ForceVariable) != "" }

// Times returns how often a test repeats an attack: quick, or harmful multiplied by ForceVariable if that is set. harmful is the number of
// repetitions that first showed the harm.
func Times(t testing.TB, quick, harmful int) int {
	t.Helper()
	if !Forced() {
		return quick
	}
	force, err := strconv.Atoi(os.Getenv(ForceVariable))
	if err != nil || force < 1 {
		t.Fatalf("%s is %q, want a number from 1 on", ForceVariable, os.Getenv(ForceVariable))
	}
	return force * harmful
}
