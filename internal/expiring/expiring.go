// Package expiring has a bounded map whose entries expire.
//
// A full map evicts the least recently used entry. The map starts no goroutine: an expired entry stays until it is read or evicted. The
// package is safe for concurrent use, and does not fail.
package expiring

import (
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
)

// Map is a bounded map whose entries expire.
type Map[K comparable, V any] struct {
	entries *lru.Cache[K, entry[V]]
	clock   func() time.Time
}

type entry[V any] struct {
	value V
	until time.Time
}

// New makes a map of at most `most` entries, which must be more than 0.
func New[K comparable, V any](most int, clock func() time.Time) *Map[K, V] {
	entries, _ := lru.New[K, entry[V]](most) // fails only if most is not positive
	return &Map[K, V]{entries: entries, clock: clock}
}

// Get returns the value of a key, unless it has expired.
func (m *Map[K, V]) Get(key K) (value V, found bool) {
	known, found := m.entries.Get(key)
	if found && !m.clock().Before(known.until) {
		m.entries.Remove(key)
		found = false
	}
	if !found {
		return value, false
	}
	return known.value, true
}

// Put stores a value until a time.
func (m *Map[K, V]) Put(key K, value V, until time.Time) {
	m.entries.Add(key, entry[V]{value, until})
}

// PutLater stores a value until a time, unless the present value of the key expires later.
func (m *Map[K, V]) PutLater(key K, value V, until time.Time) {
	if known, found := m.entries.Peek(key); !found || until.After(known.until) {
		m.Put(key, value, until)
	}
}

// Len returns the number of entries, with those that have expired and were not read since.
func (m *Map[K, V]) Len() int { return m.entries.Len() }

// Clear removes all entries.
func (m *Map[K, V]) Clear() { m.entries.Purge() }
