package throttle

import (
	"fmt"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestByPathSharesItsRoom puts invented categories below one first level. Other first levels have room, which a removal returns.
func TestByPathSharesItsRoom(t *testing.T) {
	t.Parallel()
	b := newByPath[int]()
	for i := range maxPaths {
		testkit.Equal(t, b.put(fmt.Sprint("payments.", i), i), i < maxPaths/2, "category %d is put", i)
	}
	testkit.Equal(t, b.put("payments.1", 7), true, "a new value is put")
	for i := range maxPaths {
		testkit.Equal(t, b.put(fmt.Sprint("first-", i), i), i < maxPaths/2, "first level %d is put", i)
	}
	b.remove("payments.1")
	b.remove("payments.1")
	testkit.Equal(t, b.put("payments.new", 1), true, "a category is put after a removal")
	testkit.Equal(t, b.put("another", 1), false, "a category is put where there is no room")
	testkit.Equal(t, len(b.values), maxPaths, "values")
}
