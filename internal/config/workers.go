package config

// WithShared returns the limits with those rules that the shared settings of a running worker have; see [Config.Shared]. Its error is a
// *Faults: the worker may be of another version.
func (l Limits) WithShared(shared map[string]string) (Limits, error) {
	theirs := newLoader()
	theirs.Limits = l
	for _, field := range []any{
		&theirs.Limits.Global, &theirs.Limits.Category, &theirs.Limits.Rules, &theirs.Limits.Guarantees, &theirs.Limits.ShadowLimits,
	} {
		s := theirs.setting(field)
		s.field.SetZero()
		s.text = s.Default
		theirs.parse(s)
		usual := s.sharedText()
		s.text = shared[s.Variable]
		s.given = s.text != usual
		s.field.SetZero()
		theirs.parse(s)
	}
	if len(theirs.faults) > 0 {
		return Limits{}, &theirs.faults
	}
	theirs.Limits.origins = theirs.origins()
	return theirs.Limits, nil
}
