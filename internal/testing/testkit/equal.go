package testkit

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
)

// Equal compares two values. The format says what they are.
func Equal[T comparable](t Test, got, want T, format string, arguments ...any) {
	t.Helper()
	if got != want {
		differ(t, got, want, format, arguments...)
	}
}

// AtMost compares a value with a bound. The format says what they are.
func AtMost[T cmp.Ordered](t Test, got, most T, format string, arguments ...any) {
	t.Helper()
	if got > most {
		t.Errorf("%s: got %v, want %v at most", fmt.Sprintf(format, arguments...), got, most)
	}
}

// AtLeast compares a value with a bound. The format says what they are.
func AtLeast[T cmp.Ordered](t Test, got, least T, format string, arguments ...any) {
	t.Helper()
	if got < least {
		t.Errorf("%s: got %v, want %v at least", fmt.Sprintf(format, arguments...), got, least)
	}
}

// Between compares a value with two bounds, which it may have. The format says what they are.
func Between[T cmp.Ordered](t Test, got, least, most T, format string, arguments ...any) {
	t.Helper()
	if got < least || got > most {
		t.Errorf("%s: got %v, want %v to %v", fmt.Sprintf(format, arguments...), got, least, most)
	}
}

// EqualSlices compares the elements of two slices.
func EqualSlices[S ~[]E, E comparable](t Test, got, want S, format string, arguments ...any) {
	t.Helper()
	if !slices.Equal(got, want) {
		differ(t, got, want, format, arguments...)
	}
}

// EqualMaps compares the entries of two maps.
func EqualMaps[M ~map[K]V, K, V comparable](t Test, got, want M, format string, arguments ...any) {
	t.Helper()
	if !maps.Equal(got, want) {
		differ(t, got, want, format, arguments...)
	}
}

// EqualDeeply compares as reflect.DeepEqual does.
func EqualDeeply[T any](t Test, got, want T, format string, arguments ...any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		differ(t, got, want, format, arguments...)
	}
}

// Fails wants an error. One of its causes is the given one, unless that is nil, and its text has each part. The first argument says what fails.
func Fails(t Test, what string, err, cause error, says ...string) {
	t.Helper()
	switch {
	case err == nil:
		t.Errorf("%s: got no error", what)
	case cause != nil && !errors.Is(err, cause):
		t.Errorf("%s: got the error %v, want %v", what, err, cause)
	default:
		Contains(t, what, err.Error(), says...)
	}
}
