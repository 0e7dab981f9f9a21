package testkit

// Test is what the checks need of a test: a *testing.T, a *testing.B or a *rapid.T.
type Test interface {
	Helper()
	Errorf(format string, arguments ...any)
	Fatal(arguments ...any)
}

// Must returns the value of a call. If the call failed, the test ends: file := testkit.Must(os.Open(name))(t).
func Must[T any](value T, err error) func(t Test) T {
	return func(t Test) T {
		t.Helper()
		NoError(t, err)
		return value
	}
}

// NoError ends the test where a call failed.
func NoError(t Test, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
