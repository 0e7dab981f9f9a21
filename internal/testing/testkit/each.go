package testkit

import "testing"

// Each runs a parallel test for each case, under its name.
func Each[C any](t *testing.T, cases map[string]C, run func(t *testing.T, test C)) {
	t.Helper()
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, test)
		})
	}
}
