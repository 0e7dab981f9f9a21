// Package expiring has a bounded map whose entries expire.
//
// A full map evicts the least recently used entry. The map starts no goroutine: an expired entry stays until it is read or evicted. The
// package is safe for concurrent use, and does not fail.
package expiring

import (
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// Map is a bounded map whose entries expire.
type Map[K comparable, V any] struct {
	clock func() time.Time

	mu      sync.Mutex
	entries *simplelru.LRU[K, entry[V]]
}

type entry[V any] struct {
	value V
	until time.Time
}

// New makes a map of at most `most` entries, which must be more than 0.
func New[K comparable, V any](most int, clock func() time.Time) *Map[K, V] {
	entries, _ := simplelru.NewLRU[K, entry[V]](most, nil) // fails only if most is not positive
	return &Map[K, V]{entries: entries, clock: clock}
}

// Get returns the value of a key, unless it has expired.
func (m *Map[K, V]) Get(key K) (value V, found bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	known, found := m.entries.Get(key)
	if found && !m.clock().Before(known.until) {
		m.entries.Remove(key)
		return value, false
	}
	return known.value, found
}

// Put stores a value until a time.
func (m *Map[K, V]) Put(key K, value V, until time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.entries.Add(key, entry[V]{value, until})
}

// PutLater stores a value until a time, unless the present value of the key expires later.
func (m *Map[K, V]) PutLater(key K, value V, until time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if known, found := m.entries.Peek(key); !found || until.After(known.until) {
		m.entries.Add(key, entry[V]{value, until})
	}
}

// Len returns the number of entries, with those that have expired and were not read since.
func (m *Map[K, V]) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.entries.Len()
}

// Clear removes all entries.
func (m *Map[K, V]) Clear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.entries.Purge()
}
