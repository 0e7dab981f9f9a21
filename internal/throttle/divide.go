package throttle

// part is some of the requests of a batch, and their positions there.
type part struct {
	requests  []Request
	positions []int
}

// divide tells the requests apart that are decided about by the limits, and those by their pairs.
func divide(requests []Request) (limited, resolving part) {
	for i := range requests {
		if requests[i].asksForPair() {
			resolving.add(requests[i], i)
		}
	}
	if len(resolving.requests) == 0 {
		return part{}, part{} // as a rule: nothing is copied
	}
	for i := range requests {
		if !requests[i].asksForPair() {
			limited.add(requests[i], i)
		}
	}
	return limited, resolving
}

func (p *part) add(request Request, position int) {
	p.requests, p.positions = append(p.requests, request), append(p.positions, position)
}

// put puts the decisions about the part to their positions.
func (p *part) put(decided, decisions []Decision) {
	for i, position := range p.positions {
		decisions[position] = decided[i]
	}
}

// partOf is the requests that are wanted.
func partOf(requests []Request, wanted func(Request) bool) (some part) {
	for i, request := range requests {
		if wanted(request) {
			some.add(request, i)
		}
	}
	return some
}
