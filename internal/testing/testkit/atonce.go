package testkit

import "sync"

// AtOnce runs n calls concurrently, and waits for all of them. Each call gets its number.
func AtOnce(n int, call func(i int)) {
	var calls sync.WaitGroup
	for i := range n {
		calls.Go(func() { call(i) })
	}
	calls.Wait()
}
