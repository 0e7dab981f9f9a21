// Package bench measures the notifier beside the plain way to do the same: `make bench`.
//
// Each benchmark runs its contestants one after the other, each as a process of its own against the same kind of servers,
// and prints how they compare. Only such ratios mean something: machines differ, and so does one machine from hour to
// hour. The best of several rounds counts, since noise only ever slows down.
//
// The plain port is what one would write first, with the same libraries: 64 goroutines, and for each event one call of a
// script that counts in two sorted sets. It posts the same message, over connections that are kept. It keeps no delivery
// record and takes no care of crashes.
package bench
