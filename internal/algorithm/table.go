package algorithm

// Algorithm says how a limit counts. Its value is the index of its row in the table.
type Algorithm uint8

// The algorithms. The zero value applies if a limit names no algorithm.
const (
	SlidingLog     Algorithm = iota // exact in every rolling window
	SlidingCounter                  // estimated from two fixed windows
	FixedWindow                     // exact in each window between multiples of its length since 1970
	TokenBucket                     // refilled continuously
	LeakyBucket                     // strict spacing
	InFlight                        // deliveries under way at once
)

// Description is the row of one algorithm. docs/architecture.md lists what a new row needs besides.
type Description struct {
	// Name is the name in the grammar of limits, of the script in lua/algorithms, of the picture in docs/limits and of the rule in
	// internal/testing/oracle. Keys in Redis begin with it.
	Name string

	// Memory returns an unused state. If the slots follow deliveries, the state is a [Following].
	Memory func() State

	// Frees names how slots become free.
	Frees Freeing

	// Exact: no rolling window ever has more slots than the count, whatever the costs.
	Exact bool

	// PerNode: all limits of a node share one bucket. fastpath.lua may decide from it, and the global bucket keeps guarantees.
	PerNode bool

	// TimesAdmissions: returning slots requires the time of their admission.
	TimesAdmissions bool

	// Bursts: the limit may have a burst, which is then its capacity. A share of the limit is a share of its burst too.
	Bursts bool

	// MaxProduct bounds count × window in microseconds; 0: only the bounds of every limit apply.
	MaxProduct int64

	// Picture is the caption of the picture.
	Picture string
}

// Freeing names how a limit frees slots. delay.lua plans by it when an event comes back behind the events ahead of it, and rejects any other name.
type Freeing string

// The ways of freeing slots.
const (
	WithTheWindow Freeing = "window"   // the slots of each admission, one window after it
	AtBoundaries  Freeing = "boundary" // all slots, at the end of a window of the clock
	BySpacing     Freeing = "spacing"  // at the count's rate, as many slots as the previous admission took
	ByRate        Freeing = "rate"     // at the count's rate
	ByEstimate    Freeing = "estimate" // at about the count's rate: an event may come back too early, and then waits again
	OnDelivery    Freeing = "delivery" // when a delivery ends
)

// MaxTokenProduct is the MaxProduct of token buckets. A floating-point number holds such a product exactly.
const MaxTokenProduct = 1 << 53

// table is indexed by [Algorithm].
var table = [...]Description{
	SlidingLog: {
		Name: "log", Memory: func() State { return &logBucket{} }, Frees: WithTheWindow,
		Exact: true, PerNode: true,
		Picture: "never more than 10 in any minute",
	},
	SlidingCounter: {
		Name: "counter", Memory: func() State { return &counterBucket{} }, Frees: ByEstimate,
		TimesAdmissions: true,
		Picture:         "the minute before counts by the share that is still covered",
	},
	FixedWindow: {
		Name: "fixed", Memory: func() State { return &fixedBucket{} }, Frees: AtBoundaries,
		TimesAdmissions: true,
		Picture:         "10 in each minute of the clock; more where two meet",
	},
	TokenBucket: {
		Name: "token", Memory: func() State { return &tokenBucket{} }, Frees: ByRate,
		TimesAdmissions: true, Bursts: true, MaxProduct: MaxTokenProduct,
		Picture: "10 at once, then one for each 6 s",
	},
	LeakyBucket: {
		Name: "leaky", Memory: func() State { return &leakyBucket{} }, Frees: BySpacing,
		TimesAdmissions: true,
		Picture:         "one in 6 s, never two at once",
	},
	InFlight: {
		Name: "inflight", Memory: func() State { return &inFlightBucket{} }, Frees: OnDelivery,
		Picture: "10 under way at once; a delivery takes 12 s here",
	},
}

// All lists the algorithms in the order of the table.
func All() []Algorithm {
	all := make([]Algorithm, len(table))
	for i := range all {
		all[i] = Algorithm(i)
	}
	return all
}

// Names lists the names of the algorithms that has reports true for, in the order of the table. If has is nil, it lists all names.
func Names(has func(*Description) bool) []string {
	var names []string
	for i := range table {
		if has == nil || has(&table[i]) {
			names = append(names, table[i].Name)
		}
	}
	return names
}

// Named returns the algorithm with a name in the grammar, and whether there is one.
func Named(name string) (a Algorithm, known bool) {
	for _, a := range All() {
		if a.String() == name {
			return a, true
		}
	}
	return 0, false
}

// Description returns the algorithm's row. The caller must not change it.
func (a Algorithm) Description() *Description { return &table[a] }

// String returns the name in the grammar, such as "token".
func (a Algorithm) String() string { return table[a].Name }

// FollowsDelivery reports whether slots return when the delivery ends, which may be sooner than a denial says. With any other algorithm, the wait of
// a denial is a lower bound, unless slots are refunded.
func (d *Description) FollowsDelivery() bool { return d.Frees == OnDelivery }
