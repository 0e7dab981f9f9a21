package testkit

import (
	"maps"
	"sync"
)

// Counts is what a fake of metrics counts, by name. The zero value is ready for use.
type Counts struct {
	mu      sync.Mutex
	numbers map[string]int
}

// Add adds to a number and returns the sum.
func (c *Counts) Add(name string, n int) int {
	return c.change(name, func(number int) int { return number + n })
}

// Set replaces a number.
func (c *Counts) Set(name string, n int) { c.change(name, func(int) int { return n }) }

func (c *Counts) change(name string, to func(number int) int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.numbers == nil {
		c.numbers = make(map[string]int)
	}
	c.numbers[name] = to(c.numbers[name])
	return c.numbers[name]
}

// Get returns a count. It is 0 if nothing was counted.
func (c *Counts) Get(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.numbers[name]
}

// All returns a copy of all numbers.
func (c *Counts) All() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make(map[string]int)
	maps.Copy(all, c.numbers)
	return all
}
