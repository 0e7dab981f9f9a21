package scripttest

import (
	"testing"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
)

// Ways are the ways in which the servers of the tests run scripts.
func Ways(t testing.TB) []script.Scripting {
	t.Helper()
	if servertest.HasFunctions(t) {
		return []script.Scripting{script.Eval, script.Functions}
	}
	return []script.Scripting{script.Eval}
}
