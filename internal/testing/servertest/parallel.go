package servertest

import (
	"flag"
	"runtime"
	"strconv"
)

// MoreTestsAtOnce raises -parallel to n where it has its default, the number of processors. It is for the TestMain of a package with tests
// that wait for servers more than they compute.
func MoreTestsAtOnce(n int) {
	flag.Parse()
	atOnce, processors := flag.Lookup("test.parallel"), runtime.GOMAXPROCS(0)
	if n > processors && atOnce.Value.String() == strconv.Itoa(processors) {
		_ = atOnce.Value.Set(strconv.Itoa(n)) // a number can be set
	}
}
